"""A stand-in for the ONNX Runtime of a machine with CUDA: everything but the device."""

from typing import Any

__all__ = ["Cuda"]


class Cuda:
    """ONNX Runtime as it is where CUDA is, up to the device: sessions run on the CPU and say what they were asked."""

    def __init__(self, *, works: bool) -> None:
        import onnxruntime

        self.asked: list[Any] = []
        self.fallback = True
        self._works, self._runtime = works, onnxruntime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def get_available_providers(self) -> list[str]:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def InferenceSession(self, source: Any, *, sess_options: Any, providers: list[Any]) -> Any:  # noqa: N802
        self.asked = providers
        session = self._runtime.InferenceSession(source, sess_options, providers=["CPUExecutionProvider"])
        session.get_providers = lambda: [*(["CUDAExecutionProvider"] * self._works), "CPUExecutionProvider"]
        session.disable_fallback = lambda: setattr(self, "fallback", False)
        return session
