// Markdown within a paragraph: emphasis, code, links. Targets are web pages or addresses of mail.

import { element } from "./lines.js";

const SAFE = /^(?:https?:\/\/|mailto:)/i;
const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const TARGET = "[^\\s<>()]{0,1000}(?:\\([^\\s()]{0,300}\\))?[^\\s<>()]{0,300}";
const LINK = new RegExp(
  `!?\\[([^\\]\\n]{0,300})\\]\\(\\s{0,9}<?(${TARGET})>?(?:\\s{1,9}"[^"\\n]{0,300}")?\\s{0,9}\\)`, "y",
);
const BARE = /https?:\/\/[^\s<>"'`]{1,1000}/y;
const NESTED = 12; // emphasis in emphasis
const SPECIAL = /[\\`*_~[!<h]/g;

export class Inline {
  constructor(joined, paint) {
    this.joined = joined;
    this.text = joined.text;
    this.paint = paint;
    this.unclosed = new Set(); // marks that nothing closes from here on
  }

  write(parent, start, end, depth) {
    let from = start;
    let i = start;
    const flush = (to) => this.joined.paint(parent, from, to, this.paint);
    while (i < end) {
      SPECIAL.lastIndex = i;
      const next = SPECIAL.exec(this.text);
      if (!next || next.index >= end) break;
      i = next.index;
      const found = this.#special(i, end, depth);
      if (!found) {
        i += 1;
        continue;
      }
      flush(i);
      if (found.build) parent.append(found.build());
      i = from = found.end;
      if (found.keeps) i += found.keeps;
    }
    flush(end);
  }

  #special(i, end, depth) {
    const text = this.text;
    switch (text[i]) {
      case "\\":
        return /[!-/:-@[-`{-~]/.test(text[i + 1] ?? "") ? { end: i + 1, keeps: 1 } : null;
      case "`": return this.#code(i, end);
      case "[":
      case "!": return this.#link(i, end, depth);
      case "h":
      case "<": return this.#bare(i, end);
      default: return depth < NESTED ? this.#emphasis(i, end, depth) : null;
    }
  }

  #code(i, end) {
    let n = 1;
    while (this.text[i + n] === "`") n += 1;
    const mark = "`".repeat(n);
    let close = this.unclosed.has(mark) ? -1 : this.text.indexOf(mark, i + n);
    while (close >= 0 && this.text[close + n] === "`") {
      let behind = close + n;
      while (this.text[behind] === "`") behind += 1;
      close = this.text.indexOf(mark, behind);
    }
    if (close < 0) this.unclosed.add(mark);
    if (close < 0 || close >= end) return { end: i, keeps: n };
    return {
      end: close + n,
      build: () => {
        const code = element("code");
        this.joined.paint(code, i + n, close, this.paint);
        return code;
      },
    };
  }

  #link(i, end, depth) {
    LINK.lastIndex = i;
    const match = LINK.exec(this.text);
    if (!match || i + match[0].length > end) return null;
    const [all, label, target] = match;
    const from = i + all.indexOf("[") + 1;
    return {
      end: i + all.length,
      build: () => {
        const place = anchor(target) ?? element("span");
        this.write(place, from, from + label.length, depth + 1);
        if (!place.textContent) place.textContent = target;
        return place;
      },
    };
  }

  #bare(i, end) {
    const isQuoted = this.text[i] === "<";
    if (!isQuoted && /\w/.test(this.text[i - 1] ?? "")) return null;
    BARE.lastIndex = i + isQuoted;
    const match = BARE.exec(this.text);
    if (!match) return null;
    const target = isQuoted ? match[0] : withoutEnd(match[0]);
    const from = i + isQuoted;
    const to = from + target.length;
    if (to > end || (isQuoted && this.text[to] !== ">")) return null;
    return {
      end: to + isQuoted,
      build: () => {
        const place = anchor(target) ?? element("span");
        this.joined.paint(place, from, to, this.paint);
        return place;
      },
    };
  }

  #emphasis(i, end, depth) {
    const fits = ([each]) => this.text.startsWith(each, i) && i + each.length <= end;
    const [mark, name] = MARKS.find(fits) ?? [];
    if (!mark || this.unclosed.has(mark)) return null;
    const from = i + mark.length;
    const isWord = (at) => /[\p{L}\p{N}]/u.test(this.text[at] ?? "");
    if (!/\S/.test(this.text[from] ?? " ") || (mark[0] === "_" && isWord(i - 1))) return null;
    let close = this.text.indexOf(mark, from);
    const isClose = (at) =>
      /\S/.test(this.text[at - 1]) && at > from && !(mark[0] === "_" && isWord(at + mark.length)) &&
      !(mark.length === 1 && at + 1 < end && this.text[at + 1] === mark && this.text[at - 1] !== mark);
    for (let tries = 0; close >= 0 && close < end && !isClose(close) && tries < 100; tries += 1)
      close = this.text.indexOf(mark, close + (this.text[close + 1] === mark ? 2 : 1));
    if (close < 0) this.unclosed.add(mark);
    if (mark.length === 2 && this.text[close + 2] === mark[0]) close += 1; // ***both***
    if (close < 0 || close + mark.length > end || !isClose(close)) return { end: i, keeps: mark.length };
    return {
      end: close + mark.length,
      build: () => {
        const inside = element(name);
        this.write(inside, from, close, depth + 1);
        return inside;
      },
    };
  }
}

// What belongs to the sentence around a link, and not to it.
function withoutEnd(target) {
  return target.replace(target.includes("(") ? /[.,;:!?*_~]+$/ : /[).,;:!?*_~]+$/, "");
}

function anchor(target) {
  if (!SAFE.test(target)) return null;
  return Object.assign(element("a"), {
    href: target, target: "_blank", rel: "noopener noreferrer nofollow",
  });
}
