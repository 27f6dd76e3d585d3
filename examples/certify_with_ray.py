"""Certify a data set on a Ray cluster: each actor holds the model and takes shard after shard, as they come.

    python examples/certify_with_ray.py quickstart/digits.onnx --data digits --out certificates.jsonl --seed 1

The shards are those of `robust certify --data digits --shard I/TOTAL --seed 1`, and so are their files, which lie on a
disk that all nodes share; a shard that Ray runs again resumes its file. `robust summary certificates-*.jsonl` puts
them together. Ray is not a dependency of this package: pip install "ray[data]".
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import ray

from robustinfer import Predictor
from robustinfer.certificate_file import certify_data, shard_path
from robustinfer.data import load_images


class ShardCertifier:
    """An actor: loads the model once, then certifies the shards that it is given."""

    def __init__(self, model: str, data: str, out: str, shards: int, seed: int, **settings: Any) -> None:
        self.predictor = Predictor.load(model, threads=1)
        self.images = load_images(data, self.predictor.card)
        self.out, self.shards, self.seed, self.settings = Path(out), shards, seed, settings

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The shards of a batch; how many images each of them has."""
        return {"shard": batch["id"], "images": np.array([self.certify(int(index)) for index in batch["id"]])}

    def certify(self, index: int) -> int:
        shard = (index, self.shards)
        path = shard_path(self.out, shard)
        entries = certify_data(self.predictor, self.images, path, shard=shard, seed=self.seed, **self.settings)
        return sum(1 for _ in entries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", default="digits", help="as in robust certify --data")
    parser.add_argument("--out", type=Path, default=Path("certificates.jsonl"), help="on a disk that all nodes share")
    parser.add_argument("--seed", type=int, required=True, help="one for all shards")
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--alpha", type=float, default=0.001)
    parser.add_argument("--shards", type=int, default=8, help="several per actor, so that none waits for the slowest")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--local-cpus", type=int, help="start Ray on this machine, with so many logical processors")
    arguments = parser.parse_args()

    # Actors that take all processors leave none for reading and writing, and Ray Data waits for ever.
    ray.init(num_cpus=arguments.local_cpus) if arguments.local_cpus else ray.init()
    made_with = {
        "model": str(arguments.model.resolve()),
        "data": arguments.data,
        "out": str(arguments.out.resolve()),
        "shards": arguments.shards,
        "seed": arguments.seed,
        "n": arguments.n,
        "alpha": arguments.alpha,
    }
    shards = ray.data.range(arguments.shards, override_num_blocks=arguments.shards)
    done = shards.map_batches(
        ShardCertifier,
        fn_constructor_kwargs=made_with,
        batch_size=1,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=arguments.actors),
    )
    for row in sorted(done.take_all(), key=lambda row: int(row["shard"])):
        path = shard_path(arguments.out, (row["shard"], arguments.shards))
        print(f"shard {row['shard']}: {row['images']} images, {path}")


if __name__ == "__main__":
    main()
