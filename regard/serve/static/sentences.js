// The sentences of a text with their translations, and what the user did to them: a translation or a word chosen, a text edited.
// This work survives changes of the text, of the terms and of the languages: it is found again by its sentence.
//
// A sentence is { before, text, ways, unmet, other, chosen, prefix, edited, gap, terms, earlier }:
//   before   the characters between the previous sentence and this one       text     the sentence
//   ways     its translations, each { text, words }                          chosen   the index of the one that is shown
//   prefix   what the user made the translation begin with, or ""            edited   the user's own translation, or null
//   gap      the characters before the translation, if edited, else null     other    the language it seems to be in, if another
//   unmet    what was asked for and is not in ways[0]                        terms    the terms it was translated with, as JSON
//   earlier  translations that the user had made here before, the last first
// The state is { sentences, after, end, source, target, active }, where `after` follows the last sentence, and `end` its translation
// if that was edited, else null.

const MOST_EARLIER = 3;
const MOST_KEPT = 1000;

export const newState = () => ({ sentences: [], after: "", end: null, source: "", target: "", active: 0 });
export const newSentence = (answered, other, terms) => ({ unmet: [], ...answered, other, terms, chosen: 0, prefix: "", edited: null, gap: null, earlier: [] });

export const shownText = (one) => one.edited ?? one.ways[one.chosen].text;
const shownGap = (one) => one.gap ?? one.before;
export const hasWork = (one) => one.edited !== null || one.gap !== null || one.chosen > 0 || one.prefix !== "";
export const sourceOf = (state) => state.sentences.map((one) => one.before + one.text).join("") + state.after;

// The translation in parts: a gap, a sentence, a gap, ... and the end.
export const partsOf = (state) => [...state.sentences.flatMap((one) => [shownGap(one), shownText(one)]), state.end ?? state.after];

// --- work ---

// The words of a text of the user's own, for which the model has no probabilities.
const WORD = /[\p{L}\p{N}\p{M}]+(?:['’-][\p{L}\p{N}\p{M}]+)*|[^\s\p{L}\p{N}\p{M}]+/gu;
export function wordsOf(text) {
  let end = 0;
  return [...text.matchAll(WORD)].map((match) => {
    const before = text.slice(end, match.index);
    end = match.index + match[0].length;
    return { before, text: match[0], probability: null };
  });
}
export const shownTranslation = (one) => (one.edited === null ? one.ways[one.chosen] : { text: one.edited, words: wordsOf(one.edited) });

// What is offered as "earlier" after this sentence has got another translation.
export function earlierOf(one) {
  const texts = hasWork(one) && shownText(one).trim() ? [shownText(one), ...one.earlier] : one.earlier;
  return [...new Set(texts)].slice(0, MOST_EARLIER);
}

export function setText(one, text) { one.edited = text === one.ways[one.chosen].text ? null : text; }

// Writes edited parts (as `partsOf` makes them) back.
export function setParts(state, parts) {
  state.sentences.forEach((one, i) => {
    const [gap, text] = parts.slice(2 * i);
    one.gap = gap === one.before ? null : gap;
    setText(one, text);
  });
  state.end = parts.at(-1) === state.after ? null : parts.at(-1);
}

// The beginning of a chosen translation up to the first word in which it differs from the model's best, which was the reason to choose it.
function prefixOf(one) {
  const best = one.ways[0].words, { text, words } = one.ways[one.chosen];
  let end = 0;
  for (const [i, word] of words.entries()) {
    end += word.before.length + word.text.length;
    if (best[i]?.text !== word.text) break;
  }
  return `${text.slice(0, end)} `;
}

// A prefix with the terms that are new in it. `best` is the translation with these terms, without the prefix: where a term stands
// before the chosen word, the words around it are taken from there ("Die Katze schläft auf der Decke" -> "Der Kater schläft auf der
// Decke"). null if that would change other words, which the user may have chosen, too.
function prefixWithTerms(prefix, best) {
  const words = wordsOf(prefix.trim()), last = words.pop();
  if (!best.words.some((word, i) => i < words.length && word.held && word.text !== words[i].text)) return prefix;
  const before = best.words.slice(0, words.length);
  // An article may follow the term.
  const isFree = (i) => before[i].held || before[i + 1]?.held;
  if (before.length < words.length || words.some((word, i) => word.text !== before[i].text && !isFree(i))) return null;
  return `${before.map((word) => word.before + word.text).join("")}${last.before}${last.text} `;
}

// --- memory ---

export function startMemory() {
  const kept = new Map();
  // Of several equal sentences each has its own work.
  const keysOf = ({ source, target, sentences }) => {
    const seen = new Map();
    return sentences.map(({ text }) => {
      seen.set(text, (seen.get(text) ?? 0) + 1);
      return JSON.stringify([source, target, text, seen.get(text)]);
    });
  };

  // Keeps the work in all sentences. Call it before they are replaced.
  function keep(state) {
    keysOf(state).forEach((key, i) => {
      kept.delete(key);
      if (hasWork(state.sentences[i]) || state.sentences[i].earlier.length) kept.set(key, state.sentences[i]);
    });
    for (const key of [...kept.keys()].slice(0, Math.max(0, kept.size - MOST_KEPT))) kept.delete(key);
  }

  // Puts kept work back into the sentences in `fresh`, which were just translated. Returns [index, prefix] of those that have to be
  // translated again because their terms have changed; until then they are as they were.
  function restore(state, fresh) {
    const again = [];
    keysOf(state).forEach((key, i) => {
      const one = state.sentences[i], old = kept.get(key);
      if (!old || !fresh.has(one)) return;
      one.earlier = old.earlier;
      if (!hasWork(old)) return;
      const { ways, unmet, chosen, prefix, edited, gap } = old;
      const same = one.ways.findIndex((way) => way.text === shownText(old));
      const hasNewTerms = old.terms !== one.terms;
      const begins = hasNewTerms ? prefixWithTerms(chosen ? prefixOf(old) : prefix, one.ways[0]) : prefix;
      if (hasNewTerms && (edited !== null || gap !== null)) Object.assign(one, { edited, gap });
      else if (hasNewTerms && same >= 0) Object.assign(one, { chosen: same, prefix });
      else if (begins === null) Object.assign(one, { edited: shownText(old) });
      else {
        if (hasNewTerms) again.push([i, begins]);
        Object.assign(one, { ways, unmet, chosen, prefix, edited, gap, terms: old.terms });
      }
    });
    return again;
  }

  return { keep, restore };
}

// Puts the sentences of an answer in place of those from `first` to before `last`; `terms(text)` are a sentence's terms as JSON.
// Returns the new sentences as a set.
export function replaceSentences(state, answer, first, last, terms) {
  const isSamePair = answer.source === state.source && answer.target === state.target;
  const replaced = state.sentences.slice(first, last), behind = state.sentences.slice(last);
  const fresh = answer.sentences.map((one) => newSentence(one, answer.otherLanguage ?? null, terms(one.text)));
  // A sentence that was changed: what the user made of it before is still offered.
  if (isSamePair && replaced.length === 1 && fresh.length === 1 && replaced[0].text !== fresh[0].text) fresh[0].earlier = earlierOf(replaced[0]);
  if (behind.length && answer.after) behind[0] = { ...behind[0], before: answer.after + behind[0].before };
  const after = behind.length ? state.after : answer.after;
  Object.assign(state, { source: answer.source, target: answer.target, sentences: [...state.sentences.slice(0, first), ...fresh, ...behind],
    after, end: isSamePair && after === state.after ? state.end : null });
  return new Set(fresh);
}

// The language that most of the text seems to be in, if it is not the source language.
export function otherLanguage(state) {
  const characters = new Map();
  for (const one of state.sentences) if (one.other) characters.set(one.other.language, (characters.get(one.other.language) ?? 0) + one.text.length);
  const all = state.sentences.reduce((sum, one) => sum + one.text.length, 0);
  const [most] = [...characters].sort((a, b) => b[1] - a[1]);
  return most && 2 * most[1] > all ? most[0] : null;
}
