// Prints the records of every `record` event of a stream, a JSON list a line.
import { EventSource } from "eventsource";

const events = new EventSource(process.argv[2]);
events.addEventListener("record", (event) => console.log(JSON.stringify(JSON.parse(event.data).records)));
