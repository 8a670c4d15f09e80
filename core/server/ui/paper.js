// Where a text is written as it is, token by token, each tinted by its source.

const sources = []; // in the order in which they were first seen: that is their colour

export function tintOf(source) {
  if (!sources.includes(source)) sources.push(source);
  return `var(--s${sources.indexOf(source) % 11})`;
}

export function sourceSpan(text, source) {
  const span = document.createElement("span");
  span.textContent = text;
  if (source && source !== "target") {
    span.dataset.source = source;
    span.title = source;
    span.style.setProperty("--tint", tintOf(source));
  }
  return span;
}

export function rejectedSpan(text) {
  const span = document.createElement("span");
  span.textContent = text.replaceAll("\n", "⏎");
  span.className = "rejected";
  span.title = "drafted, and not what the model writes";
  return span;
}

export class Paper {
  constructor(element) {
    this.element = element;
    this.text = "";
  }

  write(text, provenance) {
    this.text += text;
    this.element.append(
      ...(provenance?.rejected ?? []).map(rejectedSpan),
      sourceSpan(text, provenance?.source),
    );
  }

  end() {}
}
