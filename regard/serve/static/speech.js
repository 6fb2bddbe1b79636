// Reads texts aloud with the voices of the browser. Only voices on this device are used: others would send the text elsewhere.

const synthesis = globalThis.speechSynthesis;
let current = null; // the button whose text is being read
let stopped = () => {}; // called when it ends

// `read()` returns { language, texts }, what the button would read. Returns a function that shows or hides the button, to be called
// when that has changed.
export function startSpeech(button, read) {
  function voiceFor(language) {
    const code = (voice) => voice.lang.replace("_", "-").toLowerCase();
    const wanted = language.toLowerCase();
    const fitting = synthesis.getVoices().filter((voice) => voice.localService && code(voice).split("-")[0] === wanted.split("-")[0]);
    return fitting.find((voice) => code(voice) === wanted) ?? fitting.find((voice) => voice.default) ?? fitting[0] ?? null;
  }

  function mark(isSpeaking) {
    const name = isSpeaking ? button.dataset.stop : button.dataset.start;
    button.setAttribute("aria-label", name);
    button.title = name;
    button.classList.toggle("on", isSpeaking);
  }

  function speak() {
    const { language, texts } = read();
    const voice = voiceFor(language);
    if (!voice || !texts.length) return;
    current = button;
    stopped = () => mark(false);
    mark(true);
    const utterances = texts.map((text) => Object.assign(new SpeechSynthesisUtterance(text), { voice, lang: voice.lang }));
    const end = () => { if (current === button) stopSpeech(); };
    utterances.at(-1).onend = end;
    for (const one of utterances) { one.onerror = end; synthesis.speak(one); }
  }

  function show() {
    const { language, texts } = synthesis ? read() : { texts: [] };
    button.hidden = !texts.length || !voiceFor(language);
    if (button.hidden && current === button) stopSpeech();
  }

  mark(false);
  if (synthesis) {
    button.addEventListener("click", () => { const wasOn = current === button; stopSpeech(); if (!wasOn) speak(); });
    synthesis.addEventListener("voiceschanged", show); // browsers may load voices late
    addEventListener("pagehide", stopSpeech);
  }
  show();
  return show;
}

export function stopSpeech() {
  if (!current) return;
  current = null;
  stopped();
  synthesis.cancel();
}
