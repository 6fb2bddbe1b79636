// Finds the part of an edited text that must be translated again. Other sentences keep their translations and the words that the
// user chose, and typing in a long text costs no more than the sentence being typed.

// Where a sentence ends depends on the text around it, so this many characters there must be unchanged, too.
const CONTEXT_AFTER = 2; // of the next sentence
const CONTEXT_BEFORE = 12; // before the sentence

// The old text is `sentences` ([{ before, text }, ...]) followed by `after`; `text` is the new one. Sentences before `first` and from
// `last` on are kept; `part` is the text between them.
export function changedPart(sentences, after, text) {
  const starts = [], begins = [], ends = []; // offsets: of the gap before each sentence, of the sentence, and of its end
  let length = 0;
  for (const one of sentences) {
    starts.push(length);
    begins.push(length + one.before.length);
    length += one.before.length + one.text.length;
    ends.push(length);
  }
  const old = sentences.map((one) => one.before + one.text).join("") + after;
  const shorter = Math.min(old.length, text.length);
  let prefix = 0; // length of the common prefix
  while (prefix < shorter && old[prefix] === text[prefix]) prefix += 1;
  let suffix = 0; // length of the common suffix
  while (suffix < shorter - prefix && old[old.length - 1 - suffix] === text[text.length - 1 - suffix]) suffix += 1;
  const changeEnd = old.length - suffix;

  // A line break always ends a sentence; otherwise the end depends on how the next sentence begins.
  const isEndUnchanged = (i) => {
    const gap = i + 1 < sentences.length ? sentences[i + 1].before : after;
    return (gap.includes("\n") && prefix > ends[i] + gap.indexOf("\n")) || (i + 1 < sentences.length && prefix >= begins[i + 1] + CONTEXT_AFTER);
  };
  const isStartUnchanged = (i) => {
    const gap = sentences[i].before;
    return gap.includes("\n") ? changeEnd <= starts[i] + gap.lastIndexOf("\n") : i > 0 && changeEnd <= Math.max(begins[i - 1], starts[i] - CONTEXT_BEFORE);
  };
  let first = 0, last = sentences.length;
  while (first < sentences.length && ends[first] <= prefix && isEndUnchanged(first)) first += 1;
  while (last > first && starts[last - 1] >= changeEnd && isStartUnchanged(last - 1)) last -= 1;
  const from = first ? ends[first - 1] : 0;
  const to = (last < sentences.length ? starts[last] : old.length) + text.length - old.length;
  return { first, last, part: text.slice(from, Math.max(from, to)) };
}
