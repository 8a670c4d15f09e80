// Images that the next message will have: chosen, dropped or pasted, and shown above the prompt.

const KINDS = /^image\/(png|jpeg|webp|gif|bmp)$/;
const waiting = []; // data URIs, in order
let place = null; // where they are shown

export function picture(uri) {
  const image = document.createElement("img");
  image.src = uri;
  image.alt = "image";
  return image;
}

function redraw() {
  const shown = waiting.map((uri, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Remove this image";
    button.append(picture(uri));
    button.onclick = () => {
      waiting.splice(i, 1);
      redraw();
    };
    return button;
  });
  place.replaceChildren(...shown);
  place.hidden = !shown.length;
}

function dataUri(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
}

async function add(files) {
  for (const file of files) waiting.push(await dataUri(file));
  redraw();
}

const imagesOf = (data) => [...(data?.files ?? [])].filter(({ type }) => KINDS.test(type));

// All that wait, which then do so no longer.
export function take() {
  const taken = waiting.splice(0);
  redraw();
  return taken;
}

export const count = () => waiting.length;

// `area`: where files are dropped; `mayAdd`: whether the model sees images now.
export function watch({ area, prompt, input, shown, mayAdd }) {
  place = shown;
  area.addEventListener("dragover", (event) => {
    if (mayAdd() && event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  area.addEventListener("drop", (event) => {
    const files = imagesOf(event.dataTransfer);
    if (!mayAdd() || !files.length) return;
    event.preventDefault();
    add(files);
  });
  prompt.addEventListener("paste", (event) => {
    const files = imagesOf(event.clipboardData);
    if (!mayAdd() || !files.length) return;
    event.preventDefault();
    add(files);
  });
  input.addEventListener("change", () => {
    add(imagesOf(input));
    input.value = "";
  });
}
