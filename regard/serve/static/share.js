// A link to a text. Everything is in the fragment, the part after #, which browsers never send to a server.

const LONGEST = 8000; // characters of a link; some programs cut off longer ones

// `edits` are [index of a sentence, its translation]. Returns null if the link would be too long.
export function linkTo({ source, target, text, edits }) {
  const fields = new URLSearchParams([["text", text], ...edits.map(([i, edited]) => ["edit", `${i}:${edited}`]), ["from", source], ["to", target]]);
  const link = `${location.origin}${location.pathname}#translate?${fields}`; // ends in a letter: a full stop at the end of a link gets lost in mails
  return link.length > LONGEST ? null : link;
}

// What a fragment has, as for `linkTo`, or null.
export function readLink(fragment) {
  const [view, fields] = [fragment.slice(0, fragment.indexOf("?")), new URLSearchParams(fragment.slice(fragment.indexOf("?") + 1))];
  if (view !== "#translate" || !fields.get("text")?.trim()) return null;
  const edits = fields.getAll("edit").map((one) => /^(\d{1,5}):(.*)$/s.exec(one)).filter(Boolean).map(([, i, edited]) => [Number(i), edited]);
  return { source: fields.get("from") ?? "", target: fields.get("to") ?? "", text: fields.get("text"), edits };
}

// Copies a text, also on pages that come over plain HTTP from another machine, which have no clipboard.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = globalThis.regardExplain.element("textarea", { class: "quiet", "aria-hidden": "true" });
    const focused = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    focused?.focus();
  }
}
