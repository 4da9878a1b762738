// Package tiering turns Ollama's environment and a loaded model into a tiered cache.
//
// The patched runner calls [Enabled] first, then [Start] once per model that is loaded for
// good. Start reads the environment, names the model and the engine (the fingerprint under
// which pages are kept), opens the page store and wraps the cache. A model that cannot be
// tiered gets one log line with the reason, and runs as without tiering.
//
// # The server's side
//
// Some things outlive runners and belong to the server that starts them: [ClaimInstance] holds the
// directory of a server with an id, [Forget] removes the pages of a model that was removed.
//
// # Variables
//
// See [tierenv.Config] for the variables, their defaults and the effect of a bad value.
package tiering
