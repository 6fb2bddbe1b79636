// Calls a server through published clients and prints their answers as one JSON object: node clients.mjs URL KEY FOLDER
import fs from "node:fs";
import path from "node:path";
import * as deepl from "deepl-node";
import { Translate } from "translate";

const [url, key, folder] = process.argv.slice(2);
const deeplClient = new deepl.DeepLClient(key, { serverUrl: url });
const names = [deepl.Translator, deepl.DeepLClient].flatMap((kind) => Object.getOwnPropertyNames(kind.prototype));
const left = new Set(names.filter((name) => !/^(constructor|internal|constructUserAgent)/.test(name)));
// Notes which of the client's functions have been called.
const client = new Proxy(deeplClient, {
  get: (target, name) => (left.delete(name), typeof target[name] === "function" ? target[name].bind(target) : target[name]),
});
const answers = {};

async function call(name, work) {
  try {
    answers[name] = (await work()) ?? null;
  } catch (error) {
    answers[name] = { error: error.message };
  }
}

const text = async (...given) => (await client.translateText(...given)).text;
await call("text", () => text("a b c", "src", "tgt"));
await call("texts", async () => (await client.translateText(["a b", "c d"], null, "tgt")).map((one) => one.text));
await call("options", () => text("a b c", "src", "tgt", { context: "d", formality: "prefer_more", splitSentences: "off", preserveFormatting: true }));
await call("model type", async () => (await client.translateText("a", "src", "tgt", { modelType: "quality_optimized" })).modelTypeUsed);
await call("html", () => text("a <b>b</b> c", "src", "tgt", { tagHandling: "html" }));
await call("xml", () => text("<d><k>a b</k><t>a b c</t></d>", "src", "tgt", { tagHandling: "xml", ignoreTags: ["k"] }));
await call("formality", () => text("a", "src", "tgt", { formality: "more" }));
await call("sources", async () => (await client.getSourceLanguages()).map((one) => one.code));
await call("targets", async () => (await client.getTargetLanguages()).map((one) => one.code));
await call("usage", async () => (await client.getUsage()).character.count > 0);
await call("glossary pairs", async () => (await client.getGlossaryLanguagePairs()).length);

let stored;
await call("glossary", async () => {
  stored = await client.createGlossary("letters", "src", "tgt", new deepl.GlossaryEntries({ entries: { a: "k" } }));
  return (await client.getGlossary(stored.glossaryId)).entryCount;
});
await call("glossaries", async () => (await client.listGlossaries()).map((one) => one.name));
await call("glossary entries", async () => (await client.getGlossaryEntries(stored)).entries());
await call("with glossary", () => text("a b c", "src", "tgt", { glossary: stored }));
await call("delete glossary", () => client.deleteGlossary(stored));
await call("no glossary", () => client.getGlossary(stored.glossaryId));
await call("document", async () => {
  const [source, target] = ["in.txt", "out.txt"].map((name) => path.join(folder, name));
  fs.writeFileSync(source, "a b c");
  await client.translateDocument(source, target, "src", "tgt");
  return fs.readFileSync(target, "utf8");
});
await call("document in steps", async () => {
  const file = path.join(folder, "steps.txt");
  const handle = await client.uploadDocument(Buffer.from("a b c"), "src", "tgt", { filename: "in.txt" });
  await client.isDocumentTranslationComplete(handle);
  const { status } = await client.getDocumentStatus(handle);
  await client.downloadDocument(handle, file);
  return [status, fs.readFileSync(file, "utf8")];
});
await call("glossary of CSV", async () => {
  const made = await client.createGlossaryWithCsv("csv", "src", "tgt", Buffer.from("a,k\nb,l"));
  await client.deleteGlossary(made);
  return made.entryCount;
});

// What this server does not offer, with arguments that the client accepts.
const entries = { sourceLangCode: "src", targetLangCode: "tgt", entries: new deepl.GlossaryEntries({ entries: { a: "k" } }) };
const given = {
  createMultilingualGlossary: ["x", [entries]],
  createMultilingualGlossaryWithCsv: ["x", "src", "tgt", "a,k"],
  replaceMultilingualGlossaryDictionary: ["x", entries],
  replaceMultilingualGlossaryDictionaryWithCsv: ["x", "src", "tgt", "a,k"],
  updateMultilingualGlossaryDictionary: ["x", entries],
  updateMultilingualGlossaryDictionaryWithCsv: ["x", "src", "tgt", "a,k"],
  createTranslationMemoryImport: ["x.tmx", 1],
  createStyleRule: [{ name: "x", language: "en" }],
  createStyleRuleCustomInstruction: ["x", { label: "y", prompt: "z" }],
  updateStyleRuleCustomInstruction: ["x", "y", { label: "y", prompt: "z" }],
  exportTranslationMemoryToFilepath: ["x", path.join(folder, "x.tmx")],
};
// They go to an address that an earlier answer names, which this server never does.
const elsewhere = ["uploadTranslationMemoryFile", "downloadTranslationMemoryExport", "importTranslationMemoryFromFilepath"];
elsewhere.forEach((name) => left.delete(name));
const refused = {};
for (const name of [...left]) {
  try {
    await client[name](...(given[name] ?? ["x", "y", "z"]));
    refused[name] = null;
  } catch (error) {
    refused[name] = error.message;
  }
}
answers.refused = refused;
await call("npm translate", () => Translate({ engine: "libre", from: "en", to: "de", url: `${url}/translate`, key })("Good morning!"));
console.log(JSON.stringify(answers));
