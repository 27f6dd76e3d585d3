// The verdict: what is proven so far while votes come in, and the certificate at the end.

import { $, make, whole } from "./elements.js";

const FACTS = ["procedure", "bound", "sigma", "alpha", "n", "n0", "samples_used", "looks", "p_lower", "p_upper_runner_up", "radius_linf", "domain", "stopped", "seed", "image"];
const FULL = 4; // standard deviations at which the bar under the radius is full

const gauge = (radius, sigma) => ($("gauge").style.width = `${Math.min(100, (100 * radius) / (FULL * sigma))}%`);

export function begin() {
  document.documentElement.dataset.state = "asking";
  $("verdict").setAttribute("aria-busy", "true");
  $("status").textContent = "The noisy copies are voting ...";
  for (const id of ["label", "radius", "meaning", "guarantee"]) $(id).textContent = "";
  $("facts").replaceChildren();
  $("gauge").style.width = "0";
}

// Votes so far. A radius comes along only where it is proven at this very moment.
export function progress(event, model) {
  $("label").textContent = event.label === null ? "" : model.classes[event.label];
  $("radius").textContent = event.radius || "";
  gauge(event.radius ?? 0, model.sigma);
  $("meaning").textContent =
    event.radius === null
      ? "Nothing is proven before all votes are in."
      : event.radius === 0
        ? "Nothing is proven yet."
        : "Proven already. More votes can only raise the radius.";
}

// `seed` as text: it has 64 bits, which a JavaScript number cannot hold.
export function show(certificate, seed) {
  document.documentElement.dataset.state = certificate.abstained ? "abstained" : "certified";
  $("verdict").setAttribute("aria-busy", "false");
  $("status").textContent = certificate.abstained ? "No certificate" : `Certified with ${whole(certificate.samples_used)} noisy copies`;
  $("label").textContent = certificate.abstained ? "abstains" : certificate.class_name;
  $("radius").textContent = certificate.radius;
  gauge(certificate.radius, certificate.sigma);
  $("meaning").textContent = certificate.abstained ? abstention(certificate) : meaning(certificate);
  $("guarantee").textContent = `${certificate.guarantee}.`;
  const facts = FACTS.filter((name) => certificate[name] !== undefined && certificate[name] !== null);
  const text = (name) => (name === "seed" ? seed : String(certificate[name]));
  $("facts").replaceChildren(
    ...facts.flatMap((name) => [make("dt", { textContent: name }), make("dd", { textContent: text(name) })]),
  );
}

function meaning(certificate) {
  const each = certificate.radius_linf === undefined ? "" : `, or all of them by less than ${certificate.radius_linf} each`;
  const one = certificate.radius > 1 ? "become anything" : `change by less than ${certificate.radius}`;
  return `On a scale from black (0) to white (1), any one pixel value may ${one}${each}: the label stays ${certificate.class_name}, as it does after every change that is shorter than the radius. The chance that this is wrong is at most ${certificate.alpha}.`;
}

function abstention(certificate) {
  return `The votes do not settle it at alpha = ${certificate.alpha}. So the model claims nothing, rather than something that may be wrong. More votes may help.`;
}

export function failed() {
  document.documentElement.dataset.state = "idle";
  $("verdict").setAttribute("aria-busy", "false");
  $("status").textContent = "";
  $("meaning").textContent = "";
  $("label").textContent = "";
  $("radius").textContent = "";
}
