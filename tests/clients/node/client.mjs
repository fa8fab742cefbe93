// The official client for Node through a router: the surface, our errors, retries, and streams that break.
// Usage: node client.mjs SOUND_URL BUSY_URL DYING_URL
import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";

const [sound, busy, dying] = process.argv.slice(2);
const at = (baseURL, maxRetries = 0) => new OpenAI({ baseURL, apiKey: "sk-x", maxRetries, timeout: 30_000 });
const client = at(sound);
const messages = [{ role: "user", content: "hi" }];

const checks = {
  async "chat, whole"() {
    const made = await client.chat.completions.create({ model: "gpt-4o", messages });
    assert.equal(made.choices[0].message.content, "hello");
  },
  async "chat, streamed"() {
    let text = "";
    for await (const part of await client.chat.completions.create({ model: "m", messages, stream: true }))
      text += part.choices[0].delta.content ?? "";
    assert.equal(text, "hello");
  },
  async "completions and embeddings"() {
    assert.equal((await client.completions.create({ model: "m", prompt: "x" })).choices[0].text, "hello");
    const made = await client.embeddings.create({ model: "m", input: "x", encoding_format: "float" });
    assert.deepEqual(made.data[0].embedding, [0.5, 0.25]);
  },
  async "responses, streamed and by id"() {
    const seen = [];
    for await (const event of await client.responses.create({ model: "m", input: "hi", stream: true }))
      seen.push(event.type);
    assert.deepEqual(seen, ["response.created", "response.output_text.delta", "response.completed"]);
    assert.equal((await client.responses.retrieve("resp_1")).id, "resp_1");
    assert.equal((await client.responses.cancel("resp_1")).status, "cancelled");
    await client.responses.delete("resp_1");
  },
  async "audio by form, and speech as bytes"() {
    const file = await toFile(Buffer.alloc(20_000), "a.wav");
    const heard = await client.audio.transcriptions.create({ model: "gpt-4o", file });
    assert.ok(parseInt(heard.text) > 20_000);
    const spoken = await client.audio.speech.create({ model: "m", input: "hi", voice: "alloy" });
    assert.equal((await spoken.arrayBuffer()).byteLength, 3 + 256 * 20);
  },
  async "images"() {
    assert.equal((await client.images.generate({ model: "m", prompt: "x" })).data[0].b64_json, "aGk=");
    const image = await toFile(Buffer.from("png"), "a.png", { type: "image/png" });
    assert.ok((await client.images.edit({ model: "m", image, prompt: "x" })).data);
  },
  async "models"() {
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    assert.deepEqual(names, ["gpt-4o", "m", "org/big"]);
    assert.equal((await client.models.retrieve("org/big")).id, "org/big");
  },
  async "an unknown model is NotFoundError"() {
    await assert.rejects(client.chat.completions.create({ model: "none", messages }), (error) => {
      assert.ok(error instanceof OpenAI.NotFoundError);
      assert.equal(error.code, "model_not_found");
      assert.ok(error.requestID);
      return true;
    });
  },
  async "a busy engine is asked again when it says"() {
    assert.equal((await at(busy, 2).embeddings.create({ model: "m", input: "x", encoding_format: "float" })).model, "m");
  },
  async "a stream that breaks throws"() {
    const stream = await at(dying).chat.completions.create({ model: "m", messages, stream: true });
    await assert.rejects(async () => {
      for await (const _ of stream);
    }, (error) => error instanceof OpenAI.APIError && error.code === "stream_interrupted");
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`pass  ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}: ${error.stack}`);
  }
}
process.exit(failed ? 1 : 0);
