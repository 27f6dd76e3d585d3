// Elements of the page: found by id, made without markup.

export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export const whole = (number) => number.toLocaleString("en");

// A sentence about what went wrong, or nothing.
export function complain(sentence) {
  $("trouble").hidden = !sentence;
  $("trouble").textContent = sentence ?? "";
}
