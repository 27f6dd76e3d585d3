// The picture that is asked about: an example of the server, or a file of the visitor.

import { $, make } from "./elements.js";

const ENDINGS = { "image/png": ".png", "image/jpeg": ".jpg" };

// `file` holds the bytes that are sent; `example` is the name of an example that has an attack direction, `own` whether
// the visitor brought it.
function picture(file, name, { example = null, own = false } = {}) {
  const safe = name.replace(/\.[a-z]+$/i, "").replace(/[^A-Za-z0-9-]+/g, "-").replace(/^-+|-+$/g, "") || "picture";
  return { file, name, example, own, fileName: safe + (ENDINGS[file.type] ?? ".png"), url: URL.createObjectURL(file) };
}

function ofExample(example) {
  const bytes = Uint8Array.from(atob(example.picture.split(",")[1]), (letter) => letter.charCodeAt(0));
  return picture(new Blob([bytes], { type: "image/png" }), example.name, { example: example.attacked ? example.name : null });
}

// Tiles to pick from; the first one is picked, unless the visitor's own picture is to stay.
export function showExamples(examples, picked, { stays = false } = {}) {
  const tiles = examples.map((example) => {
    const input = make("input", { type: "radio", name: "example", className: "unseen" });
    input.addEventListener("change", () => picked(ofExample(example)));
    const words = example.attacked ? `${example.name}, with an attack` : example.name;
    const tile = make("label", { title: words }, input, make("img", { src: example.picture, alt: words, className: "pixels" }));
    if (example.attacked) tile.append(make("span", { className: "mark" }));
    return tile;
  });
  $("examples").replaceChildren(...tiles);
  $("attacked-note").hidden = !examples.some((example) => example.attacked);
  if (examples.length && !stays) {
    $("examples").querySelector("input").checked = true;
    picked(ofExample(examples[0]));
  }
}

export function takeFiles(picked) {
  const drop = $("drop");
  const take = (file) => {
    if (!file) return;
    $("examples").querySelectorAll("input").forEach((input) => (input.checked = false));
    picked(picture(file, file.name || "picture", { own: true }));
  };
  $("file").addEventListener("change", () => {
    take($("file").files[0]);
    $("file").value = ""; // the same file may be chosen again
  });
  // Wherever on the page a file is dropped, it is meant; a browser would leave the page for it.
  addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  addEventListener("dragleave", () => drop.classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
  addEventListener("paste", (event) => take(event.clipboardData.files[0]));
}

// A model that takes one size only refuses others: this offers to shrink the picture here, and to ask about the result.
export function offerShrinking(refused, input, picked) {
  const button = $("shrink");
  button.hidden = !refused;
  if (!refused) return;
  button.textContent = `Shrink it to ${input.width} x ${input.height} and ask again`;
  button.onclick = async () => {
    const bitmap = await createImageBitmap(refused.file);
    const side = Math.min(bitmap.width / input.width, bitmap.height / input.height);
    const [width, height] = [side * input.width, side * input.height];
    const canvas = make("canvas", { width: input.width, height: input.height });
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(bitmap, (bitmap.width - width) / 2, (bitmap.height - height) / 2, width, height, 0, 0, input.width, input.height);
    canvas.toBlob((blob) => picked(picture(blob, refused.name, { own: true })), "image/png");
  };
}

export function shrinkable(picture, input) {
  if (input.resize !== "refuse") return Promise.resolve(false);
  return createImageBitmap(picture.file).then(
    (bitmap) => bitmap.width !== input.width || bitmap.height !== input.height,
    () => false, // not a picture that the browser can read
  );
}

export function inBase64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.split(",")[1]);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

export function save(content, type, name) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
