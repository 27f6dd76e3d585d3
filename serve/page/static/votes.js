// The votes of the noisy copies, as bars that grow, and some of the copies themselves.

import { $, make, whole } from "./elements.js";

const MOST = 10; // bars; of many classes those with the most votes are shown

let classes = [];

export function begin(names) {
  classes = names;
  show(names.map(() => 0), null);
  $("count").textContent = "";
}

export function show(counts, label) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  let shown = classes.map((_, index) => index);
  if (shown.length > MOST) shown = shown.sort((one, other) => counts[other] - counts[one] || one - other).slice(0, MOST);
  const rows = shown.flatMap((index) => {
    const bar = make("div");
    bar.style.width = total ? `${(100 * counts[index]) / total}%` : "0";
    const track = make("div", { className: index === label ? "bar top" : "bar" }, bar);
    return [make("span", { textContent: classes[index] }), track, make("span", { textContent: whole(counts[index]) })];
  });
  $("votes").replaceChildren(...rows);
}

export function progress(event) {
  show(event.counts, event.counts.indexOf(Math.max(...event.counts)));
  $("count").textContent = `${whole(event.samples_used)} noisy copies so far`;
}

export function final(certificate) {
  show(certificate.counts, certificate.label);
  const invalid = certificate.invalid ? `; ${whole(certificate.invalid)} had no valid vote` : "";
  $("count").textContent = `${whole(certificate.samples_used)} noisy copies, of which the first ${whole(certificate.n0)} only chose the label${invalid}`;
}

// `seen` is the answer about some noisy copies; `label` what the certificate says, if there is one.
export function showViews(seen, label, sentence) {
  $("picture").src = seen.picture;
  const copies = seen.views.map((view) => {
    const name = view.class_name ?? "none";
    const other = label !== null && view.label !== label;
    return make(
      "figure",
      { className: other ? "other" : "" },
      make("img", { src: view.picture, alt: `a noisy copy, which votes for ${name}`, className: "pixels" }),
      make("figcaption", { textContent: name, title: name }),
    );
  });
  $("views").replaceChildren(...copies);
  $("views-note").textContent = sentence;
}
