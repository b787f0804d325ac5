// A BullMQ flow: `node flow.mjs worker` takes jobs, `node flow.mjs` drives, sizes in and milliseconds out.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(`${process.env.BENCH_MODULES}/`);
const { FlowProducer, Worker } = require("bullmq");
const Redis = require("ioredis");

const options = {
  path: process.env.BENCH_SOCKET,
  db: Number(process.env.BENCH_DATABASE),
  maxRetriesPerRequest: null,
};
const answer = "0123456789".repeat(50);

async function work() {
  const client = new Redis(options);
  const leaf = new Worker("leaf", async () => answer, { connection: options, concurrency: 1 });
  const resume = new Worker(
    "resume",
    async (job) => {
      const answers = Object.values(await job.getChildrenValues());
      const now = Date.now();
      if (answers.length !== job.data.size) throw new Error(`${answers.length} answers`);
      await client.lpush(job.data.key, now / 1000);
    },
    { connection: options, concurrency: 1 },
  );
  await Promise.all([leaf.waitUntilReady(), resume.waitUntilReady()]);
  console.log("ready");
}

async function drive() {
  const client = new Redis(options);
  const flows = new FlowProducer({ connection: options });
  let number = 0;
  for await (const line of createInterface({ input: process.stdin })) {
    const size = Number(line);
    const key = `bench:end:${number++}`;
    const start = Date.now();
    await flows.add({
      name: "resume",
      queueName: "resume",
      data: { key, size },
      children: Array.from({ length: size }, (_, i) => ({ name: "leaf", queueName: "leaf", data: { number: i } })),
    });
    const [, end] = await client.blpop(key, 0);
    console.log(JSON.stringify(Number(end) * 1000 - start));
  }
  process.exit(0);
}

await (process.argv[2] === "worker" ? work() : drive());
