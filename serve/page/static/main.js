// What happens when: a picture is picked, the server is asked, votes come in, a certificate is there.

import * as calls from "./calls.js";
import * as certificates from "./certificate.js";
import { $, complain } from "./elements.js";
import { inBase64, offerShrinking, save, showExamples, shrinkable, takeFiles } from "./picture.js";
import * as prices from "./prices.js";
import { get, post, Refused, stream, useToken } from "./server.js";
import * as settings from "./settings.js";
import * as votes from "./votes.js";
import * as walk from "./walk.js";

let model = null, picture = null;
let answer = null; // the last certificate: {text, certificate, seed, picture, model}
let running = new AbortController();
let direction = 0; // number of the random direction, 0 for the attack

const api = (name, query) => `page/api/${encodeURIComponent(model.name)}/${name}?${calls.query(query)}`;
const invoke = (query) => `models/${encodeURIComponent(model.name)}/invoke?${calls.query(query)}`;

async function open() {
  let models;
  try {
    ({ models } = await get("page/api/models"));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    $("entry").hidden = error.status !== 401;
    if (error.status !== 401 || $("token").value) complain(error.message);
    if (error.status === 401) $("token").focus();
    return;
  }
  complain(null);
  $("entry").hidden = true;
  if (!models.length) return complain("No model on this server gives certificates: none of them has a sigma.");
  $("content").hidden = false;
  model = models[0];
  settings.offer(model.choices);
  settings.offerModels(models, (other) => {
    const pictures = ({ examples }) => examples.map((example) => example.picture).join();
    const others = pictures(other) !== pictures(model);
    model = other;
    prices.clear(); // they were another model's
    settings.offer(model.choices);
    const stays = !others || picture?.own || !model.examples.length;
    if (others) showExamples(model.examples, pick, { stays });
    if (picture && stays) ask();
  });
  settings.whenChanged(() => picture && ask());
  takeFiles(pick);
  showExamples(model.examples, pick);
}

function pick(chosen) {
  if (picture) URL.revokeObjectURL(picture.url);
  picture = chosen;
  direction = picture.example ? 0 : 1;
  $("picture").src = $("changed").src = picture.url;
  offerShrinking(null);
  prices.clear();
  ask();
}

// Ask the chosen question about the picture, and show what happens; a question that still runs is given up.
async function ask() {
  running.abort();
  const { signal } = (running = new AbortController());
  const [asked, chosen] = [picture, settings.chosen()];
  answer = null;
  for (const id of ["verify", "download", "compare"]) $(id).disabled = true;
  $("save").disabled = false;
  $("verified").textContent = "";
  complain(null);
  calls.show(model, picture, chosen);
  certificates.begin();
  votes.begin(model.classes);
  walk.clear();
  try {
    const seen = await post(api("views", { count: 12 }), asked.file, { signal });
    votes.showViews(seen, null, "Twelve noisy copies, each with its vote.");
    for await (const event of stream(invoke({ ...chosen, stream: 1 }), asked.file, signal)) {
      await meet(event, asked, signal);
    }
    if (!answer) throw new Refused(0, "The answer was cut off: ask again.");
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Refused)) throw error;
    certificates.failed();
    complain(error.message);
    if (await shrinkable(asked, model.input)) offerShrinking(asked, model.input, pick);
  }
}

async function meet({ name, text }, asked, signal) {
  const content = JSON.parse(text);
  if (name === "error") throw new Refused(0, content.error.message);
  if (name === "votes") {
    votes.progress(content);
    certificates.progress(content, model);
  }
  if (name !== "answer") return;
  answer = { text, certificate: content, seed: text.match(/"seed": ?(\d+)/)[1], picture: asked, model };
  votes.final(content);
  certificates.show(content, answer.seed);
  for (const id of ["verify", "download", "compare"]) $(id).disabled = false;
  const voters = { count: 12, seed: answer.seed, first: content.n0 };
  votes.showViews(await post(api("views", voters), asked.file, { signal }), content.label, "Twelve of the copies that voted, drawn from the certificate's seed.");
  await lead(signal);
}

// Walk away from the picture, along its attack or in a random direction.
async function lead(signal = running.signal) {
  const attacked = answer.model.examples.some((one) => one.attacked && one.name === answer.picture.example);
  if (!attacked && direction === 0) direction = 1;
  const along = direction === 0 ? { attack: answer.picture.example } : { random: direction };
  $("attack").disabled = !attacked;
  $("attack").setAttribute("aria-pressed", String(direction === 0));
  $("random").setAttribute("aria-pressed", String(direction > 0));
  $("random").textContent = direction > 0 ? "In another random direction" : "In a random direction";
  $("fool-note").textContent =
    direction === 0
      ? "This change was computed to fool an ordinary network. Move the slider to apply it step by step."
      : `${attacked ? "A" : "No attack was computed for this picture; a"} random change rarely fools anybody. Move the slider to apply it step by step.`;
  const found = await post(api("walk", { ...along, radius: answer.certificate.radius }), answer.picture.file, { signal });
  walk.begin(found, answer.certificate, answer.model.ordinary, direction);
}

async function turn(to) {
  if (!answer) return;
  direction = to;
  await attempt(() => lead());
}

// Do something for which the server may have no answer, or that a new question may interrupt.
async function attempt(work) {
  try {
    await work();
  } catch (error) {
    if (error instanceof Refused) complain(error.message);
    else if (error.name !== "AbortError") throw error;
  }
}

async function compare() {
  $("compare").disabled = true;
  await attempt(async () => prices.show(await post(api("prices", {}), picture.file, { signal: running.signal }), settings.chosen()));
  $("compare").disabled = false;
}

// Ask the server to draw the votes of a certificate again. Its text is sent as it is, because its seed has 64 bits.
async function verify(text) {
  $("verified").className = "";
  $("verified").textContent = "Drawing the same noise again ...";
  try {
    const image = await inBase64(picture.file);
    const body = `{"certificate": ${text}, "image": "${image}"}`;
    const path = `models/${encodeURIComponent(model.name)}/verify`;
    const replay = await post(path, body, { headers: { "Content-Type": "application/json" } });
    $("verified").className = replay.ok ? "good" : "bad";
    $("verified").textContent = `${replay.ok ? "Verified" : "Not true"}: ${replay.reason}.`;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    $("verified").className = "bad";
    $("verified").textContent = `Not verified: ${error.message}`;
  }
}

$("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken($("token").value);
  open();
});
$("again").addEventListener("click", () => picture && ask());
$("compare").addEventListener("click", compare);
$("attack").addEventListener("click", () => turn(0));
$("random").addEventListener("click", () => turn(direction + 1));
$("step").addEventListener("input", walk.show);
$("verify").addEventListener("click", () => verify(answer.text));
$("download").addEventListener("click", () => save(`${answer.text}\n`, "application/json", "certificate.json"));
$("save").addEventListener("click", () => save(picture.file, picture.file.type, picture.fileName));
$("foreign").addEventListener("change", async () => {
  const [file] = $("foreign").files;
  $("foreign").value = "";
  if (file && picture) await verify(await file.text());
});
calls.copyable();
open();
