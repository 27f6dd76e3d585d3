// The walk: the picture is changed step by step, and two classifiers are asked at each step.

import { $, make } from "./elements.js";

let points = [], certificate = null;

export function clear() {
  points = [];
  $("step").disabled = true;
  for (const id of ["ordinary-lane", "own-lane"]) $(id).replaceChildren();
  for (const id of ["ordinary-says", "own-says", "ordinary-mark", "own-mark", "distance"]) $(id).textContent = "";
}

// `ordinary` says whether there is another network; otherwise the model itself is asked without its noise. `direction`
// is 0 for an attack, or the number of a random direction.
export function begin(found, ofCertificate, ordinary, direction) {
  [points, certificate] = [found.points, ofCertificate];
  $("ordinary-name").textContent = ordinary ? "An ordinary network says" : "The model without its noise says";
  $("ordinary-lane-name").textContent = ordinary ? "ordinary network" : "without noise";
  const start = points[0].ordinary;
  const end = points.findIndex((point) => !point.proven);
  lane("ordinary-lane", (point) => (point.ordinary === start ? "" : "other"), -1);
  lane("own-lane", (point) => `${kind(point)}${point.proven ? " proven" : ""}`, end);
  $("step").disabled = false;
  $("step").max = points.length - 1;
  $("step").value = 0;
  $("step").dataset.direction = direction;
  show();
}

function lane(id, className, edge) {
  const pieces = points.map((point, index) => make("i", { className: className(point) + (index === edge ? " edge" : "") }));
  $(id).replaceChildren(...pieces);
}

function kind(point) {
  if (point.label === null) return "none";
  return certificate.label === null || point.label === certificate.label ? "" : "other";
}

export function show() {
  const index = Number($("step").value);
  const point = points[index];
  if (!point) return;
  $("changed").src = point.picture;
  $("distance").textContent = point.distance;
  const flipped = point.ordinary !== points[0].ordinary;
  $("ordinary-panel").className = flipped ? "panel other" : "panel";
  $("ordinary-says").textContent = point.ordinary_name;
  $("ordinary-mark").textContent = flipped ? "another label: it is fooled" : "no proof";
  $("own-panel").className = `panel ${kind(point)}`;
  $("own-says").textContent = point.class_name ?? "abstains";
  $("own-mark").textContent = mark(point);
  for (const id of ["ordinary-lane", "own-lane"]) [...$(id).children].forEach((piece, place) => piece.classList.toggle("here", place === index));
  $("step").setAttribute(
    "aria-valuetext",
    `length ${point.distance}: the other network says ${point.ordinary_name}, the certified model ${point.class_name ?? "abstains"}, ${mark(point)}`,
  );
}

function mark(point) {
  if (!point.proven) return certificate.abstained ? "nothing is proven for this picture" : "unproven: beyond the radius";
  if (point.label === null) return `too close to call with few votes, but proven to be ${certificate.class_name}`;
  if (point.label !== certificate.label) return "a contradiction, which happens with probability alpha at most";
  return "proven: within the radius";
}
