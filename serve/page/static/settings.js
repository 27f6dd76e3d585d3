// What the visitor asks for: alpha, n, when the votes are looked at, and the model, which decides the noise.

import { $, whole } from "./elements.js";

let choices = null;

// Offer what the server offers; what was chosen before stays, where it is offered again.
export function offer(offered) {
  const before = choices ? chosen() : { alpha: 0.001, n: offered.n.at(-1) };
  choices = offered;
  for (const name of ["alpha", "n"]) {
    const place = offered[name].indexOf(before[name]);
    $(name).max = offered[name].length - 1;
    $(name).value = place < 0 ? offered[name].length - 1 : place;
  }
  $("procedure").querySelector("[value=deadline]").textContent = `as they come in, for at most ${offered.deadline} seconds`;
  show();
}

function show() {
  const shown = { alpha: String(chosen().alpha), n: whole(chosen().n) };
  for (const [id, text] of Object.entries(shown)) {
    $(`${id}-shown`).textContent = text;
    $(id).setAttribute("aria-valuetext", text);
  }
  $("requested-field").hidden = $("procedure").value !== "radius";
}

// The settings as a request has them.
export function chosen() {
  const settings = { mode: "certify", n: choices.n[$("n").value], alpha: choices.alpha[$("alpha").value] };
  const procedure = $("procedure").value;
  if (procedure === "deadline") settings.deadline = choices.deadline;
  if (procedure === "radius") settings.radius = $("requested").value;
  return settings;
}

export function offerModels(models, picked) {
  const slider = $("model");
  $("model-field").hidden = models.length < 2;
  // A model is certified with its own noise only, so more noise is another file.
  const noisier = new Set(models.map(({ sigma }) => sigma)).size > 1;
  $("model-title").textContent = noisier ? "noise, and the model for it" : "model";
  slider.max = models.length - 1;
  slider.value = 0;
  const shown = () => {
    const { name, sigma } = models[slider.value];
    $("model-shown").textContent = `sigma ${sigma}, ${name}`;
    slider.setAttribute("aria-valuetext", $("model-shown").textContent);
  };
  slider.addEventListener("input", shown);
  slider.addEventListener("change", () => picked(models[slider.value]));
  shown();
}

export function whenChanged(changed) {
  $("settings").addEventListener("input", show);
  $("settings").addEventListener("change", (event) => event.target.id !== "model" && changed());
  $("settings").addEventListener("submit", (event) => event.preventDefault());
}
