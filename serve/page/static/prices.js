// What n votes prove at each alpha: a table of radii that rest on the same samples.

import { $, make, whole } from "./elements.js";

export function clear() {
  $("prices").hidden = $("prices-note").hidden = true;
}

// `chosen` has the n and the alpha of the visitor's own question, whose cell is marked.
export function show(found, chosen) {
  const largest = Math.max(...found.radii.flat());
  const head = make("tr", {}, make("th", { scope: "col", textContent: "votes n" }));
  head.append(...found.alphas.map((alpha) => make("th", { scope: "col", textContent: `alpha ${alpha}` })));
  const rows = found.sizes.map((n, row) => {
    const cells = found.radii[row].map((radius, column) => {
      const bar = make("i");
      bar.style.width = `${largest ? (100 * radius) / largest : 0}%`;
      const own = n === chosen.n && found.alphas[column] === chosen.alpha;
      return make("td", { className: own ? "own" : "" }, make("span", { textContent: radius === null ? "too few" : radius === 0 ? "abstains" : radius }), bar);
    });
    return make("tr", {}, make("th", { scope: "row", textContent: whole(n) }), ...cells);
  });
  $("prices").tHead.replaceChildren(head);
  $("prices").tBodies[0].replaceChildren(...rows);
  $("prices").hidden = $("prices-note").hidden = false;
}
