// What pages add with JavaScript: live parts, cross-hair on charts, keys, theme, the explanation beside tokens.
// Every page is complete without it. Nothing here writes to the server.

import { follow } from "./live.js";
import { crosshair } from "./chart.js";
import { keys } from "./keys.js";
import { explain } from "./explain.js";
import { theme } from "./theme.js";

theme(document.getElementById("theme"));
keys();
explain();
crosshair(document);
follow(document.body.dataset.events, document.getElementById("live"), crosshair);
