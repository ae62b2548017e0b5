// Does with Dapr's SDK for JavaScript what the test says on standard input, a line each, and prints what came as JSON.
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { CommunicationProtocolEnum, DaprClient } from "@dapr/dapr";

const [address, store, pause] = process.argv.slice(2);
const [daprHost, daprPort] = address.split(":");
const client = new DaprClient({ daprHost, daprPort, communicationProtocol: CommunicationProtocolEnum.GRPC });

function print(kind, value) {
  console.log(`told ${JSON.stringify({ kind, value })}`);
}

function values(items) {
  return Object.fromEntries(Object.entries(items).map(([name, item]) => [name, item.value]));
}

let subscription;

const commands = {
  async get(key) {
    print("items", values((await client.configuration.get(store, [key])).items));
  },
  async single(key) {
    print("item", (await client.configuration.get(store, [key])).items[key]?.value ?? null);
  },
  async subscribe(key) {
    subscription = await client.configuration.subscribeWithKeys(store, [key], async (data) => {
      await sleep(Number(pause));
      print("update", values(data.items));
    });
    print("subscribed", true); // the stream itself is opened behind it
  },
  async unsubscribe() {
    await subscription.stop();
    print("unsubscribed", true);
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [command, argument] = line.split(" ");
  try {
    await commands[command](argument);
  } catch (error) {
    print("error", String(error));
  }
}
await client.stop();
process.exit(0);
