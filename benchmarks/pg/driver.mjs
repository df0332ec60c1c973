// Runs a Node queue for the benchmark. It reads lines of JSON, [id, operation, argument], and answers each with a line,
// [id, result] or [id, null, error].
import { createInterface } from "node:readline";

const [system, url, clients, works] = process.argv.slice(2);
const connections = Math.max(1, Number(clients));
const payload = { p: "x".repeat(191) };

function reply(...line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

// Opens every connection of a pool before the clock starts.
function openAll(query) {
  return Promise.all(Array.from({ length: connections }, () => query("SELECT pg_sleep(0.2)")));
}

async function pgBoss() {
  const { PgBoss } = await import("pg-boss");
  const boss = new PgBoss({ connectionString: url, max: connections });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  if (!(await boss.getQueue("q"))) await boss.createQueue("q");
  await openAll((sql) => boss.getDb().executeSql(sql));
  return {
    push: (count) => (count === 1 ? boss.send("q", payload) : boss.insert("q", Array(count).fill({ data: payload }))),
    pop: async (count) => (await boss.fetch("q", { batchSize: count })).map((job) => job.id),
    ack: (ids) => boss.complete("q", ids),
    stop: () => boss.stop({ graceful: false }),
  };
}

async function graphileWorker() {
  const { Logger, makeWorkerUtils, run } = await import("graphile-worker");
  const { default: pg } = await import("pg");
  const logger = new Logger(() => () => {});
  const pool = new pg.Pool({ connectionString: url, max: connections });
  pool.on("error", (error) => console.error(error));
  pool.on("connect", (client) => client.on("error", (error) => console.error(error)));
  const producer = await makeWorkerUtils({ pgPool: pool, logger });
  await producer.migrate();
  await openAll((sql) => pool.query(sql));
  // A handler returns only when a client wants a message, so that a backlog keeps its size.
  const orders = [];
  const held = [];
  function match() {
    while (orders.length && held.length) {
      held.shift()();
      const order = orders[0];
      order.left -= 1;
      if (order.left === 0) orders.shift().done(Array(order.count).fill(null));
    }
  }
  function handle() {
    return new Promise((resolve) => {
      held.push(resolve);
      match();
    });
  }
  function pop(count) {
    return new Promise((done) => {
      orders.push({ count, left: count, done });
      match();
    });
  }
  // These settings are from its documentation on performance.
  const worker = { concurrentJobs: 24, maxPoolSize: 25, localQueue: { size: 500 }, completeJobBatchDelay: 0 };
  const preset = { worker: { connectionString: url, logger, failJobBatchDelay: 0, ...worker } };
  const runner = works ? await run({ preset, taskList: { t: handle }, noHandleSignals: true }) : null;
  return {
    push: (count) =>
      count === 1
        ? producer.addJob("t", payload)
        : producer.addJobs(Array(count).fill({ identifier: "t", payload })),
    pop,
    stop: async () => {
      pop(held.length);
      await runner?.stop();
      await producer.release();
      await pool.end();
    },
  };
}

const queue = await { "pg-boss": pgBoss, "graphile-worker": graphileWorker }[system]();
reply(-1, "ready");
for await (const line of createInterface({ input: process.stdin })) {
  const [id, operation, argument] = JSON.parse(line);
  const needed = operation === "pop";
  queue[operation](argument).then(
    (result) => reply(id, needed ? result : true),
    (error) => reply(id, null, String(error)),
  );
}
await queue.stop();
process.exit(0);
