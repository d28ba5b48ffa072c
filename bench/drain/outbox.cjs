// A worker of pg-transactional-outbox: its polling listener of an inbox, as its README has it.
// `setup` prints the SQL of its tables. `drain URL BATCH` listens when a line comes in, until it has
// had nothing to do for a while, and answers how many messages it has handled.
const readline = require('node:readline');
const {
  DatabaseSetupExporter,
  getDisabledLogger,
  initializePollingMessageListener,
} = require('pg-transactional-outbox');

const QUIET = 200; // milliseconds

const settings = {
  dbSchema: 'public',
  dbTable: 'inbox',
  enableMaxAttemptsProtection: true,
  enablePoisonousMessageProtection: true,
  nextMessagesFunctionName: 'next_inbox_messages',
  nextMessagesPollingIntervalInMs: 20,
};

function setup() {
  console.log(
    DatabaseSetupExporter.createPollingScript({
      outboxOrInbox: 'inbox',
      database: 'ignored',
      schema: 'public',
      table: 'inbox',
      listenerRole: 'postgres',
      handlerRole: 'postgres',
      nextMessagesName: 'next_inbox_messages',
    }),
  );
}

async function drain(connectionString, batch) {
  let done = 0;
  let last = Date.now();
  const handler = {
    aggregateType: 'account',
    messageType: 'payment',
    handle: async ({ payload }, client) => {
      await client.query(
        'INSERT INTO ledger (message_id, account, n, amount) VALUES ($1, $2, $3, $4)',
        [payload.id, payload.account, payload.n, payload.amount],
      );
      done += 1;
      last = Date.now();
    },
  };
  const config = {
    outboxOrInbox: 'inbox',
    dbListenerConfig: { connectionString },
    settings: { ...settings, nextMessagesBatchSize: batch },
  };
  const [shutdown] = initializePollingMessageListener(config, [handler], getDisabledLogger());
  while (Date.now() - last < QUIET) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  await shutdown();
  return done;
}

async function main([verb, url, batch]) {
  if (verb === 'setup') return setup();
  for await (const _ of readline.createInterface({ input: process.stdin })) {
    console.log(await drain(url, Number(batch)));
  }
}

main(process.argv.slice(2));
