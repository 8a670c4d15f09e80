// Which model answers, where the server has several.

import { get } from "./api.js";
import { recall, remember } from "./settings.js";

const byId = (id) => document.getElementById(id);
export const chosenModel = () => byId("models").value;

export const named = (body) => (chosenModel() ? { ...body, model: chosenModel() } : body);

const propsPath = () =>
  chosenModel() ? `props?model=${encodeURIComponent(chosenModel())}` : "props";

export async function props() {
  let found = await get(propsPath());
  if (found.role === "router") {
    await offerModels();
    found = await get(propsPath());
  }
  return found;
}

async function offerModels() {
  const all = (await get("models")).data;
  const data = all.filter(({ status }) => status.value !== "downloading");
  const isLoaded = ({ status }) => status.value === "loaded";
  byId("models").replaceChildren(...data.map(option));
  const before = data.find(({ id }) => id === recall("model"));
  byId("models").value = (before ?? data.find(isLoaded) ?? data[0])?.id ?? "";
  byId("models").hidden = false;
}

function option({ id, status }) {
  const isUp = ["loaded", "sleeping"].includes(status.value);
  return new Option(isUp ? id : `${id} (${status.value})`, id);
}

// `changed`: called when another one is chosen.
export function watch(changed) {
  byId("models").onchange = () => {
    remember("model", chosenModel());
    changed();
  };
}

// States are those of now: a model that was named is loaded.
export async function refresh() {
  if (byId("models").hidden) return;
  const { data } = await get("models");
  const options = [...byId("models").options];
  for (const model of data) {
    const shown = options.find(({ value }) => value === model.id);
    if (shown) shown.text = option(model).text;
  }
}
