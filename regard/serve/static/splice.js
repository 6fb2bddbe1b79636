// What of a text must be translated again after it was changed. Sentences away from the change stay as they are, with the words
// that somebody chose in them, and a long text costs no more than the sentence that is being written.

const BEGINNING = 2; // characters of the next sentence that must be as they were: they decide where a sentence ends
const ENDING = 12; // characters before a sentence that must be as they were, likewise

// `sentences` and `after` make up the old text: [{ before, text }, ...]. Keep those before `first` and from `last` on; what stands
// between them is `part` now.
export function changedPart(sentences, after, text) {
  const starts = [], begins = [], ends = []; // of what is before a sentence, of the sentence, of what follows it
  let length = 0;
  for (const one of sentences) {
    starts.push(length);
    begins.push(length + one.before.length);
    length += one.before.length + one.text.length;
    ends.push(length);
  }
  const old = sentences.map((one) => one.before + one.text).join("") + after;
  const most = Math.min(old.length, text.length);
  let same = 0; // from the beginning
  while (same < most && old[same] === text[same]) same += 1;
  let behind = 0; // from the end
  while (behind < most - same && old[old.length - 1 - behind] === text[text.length - 1 - behind]) behind += 1;
  const until = old.length - behind;

  // A line break ends a sentence whatever follows it; else the next sentence's beginning has its say.
  const endStands = (i) => {
    const gap = i + 1 < sentences.length ? sentences[i + 1].before : after;
    return (gap.includes("\n") && same > ends[i] + gap.indexOf("\n")) || (i + 1 < sentences.length && same >= begins[i + 1] + BEGINNING);
  };
  const beginningStands = (i) => {
    const gap = sentences[i].before;
    return gap.includes("\n") ? until <= starts[i] + gap.lastIndexOf("\n") : i > 0 && until <= Math.max(begins[i - 1], starts[i] - ENDING);
  };
  let first = 0, last = sentences.length;
  while (first < sentences.length && ends[first] <= same && endStands(first)) first += 1;
  while (last > first && starts[last - 1] >= until && beginningStands(last - 1)) last -= 1;
  const from = first ? ends[first - 1] : 0;
  const to = (last < sentences.length ? starts[last] : old.length) + text.length - old.length;
  return { first, last, part: text.slice(from, Math.max(from, to)) };
}
