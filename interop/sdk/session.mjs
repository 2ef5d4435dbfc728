// The official openai package, unchanged, in a session through `bulkhead serve` in front
// of an engine. drive starts all of them and says where they are: BASE_URL (with /v1),
// KEYS of three tenants, ENGINE_URL, ENGINE_MODEL, ENGINE_CAN, WITNESS_URL and WINDOW.
// It prints one line for each step and exits 1 if any failed.
import { runAll } from "./session/rig.mjs";
import "./session/chat.mjs";
import "./session/tools.mjs";
import "./session/completions.mjs";
import "./session/limits.mjs";

await runAll();
