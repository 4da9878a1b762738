// Package lab has what benchmarks share: an Ollama with the KV tier on or off, a model in it,
// and a stopwatch.
//
//	l, err := lab.Start(ctx, lab.Options{Model: model, Root: pages, NumCtx: 9216})
//	defer l.Close()
//	answer, err := l.Ask(ctx, lab.Question{Prompt: text, Tokens: 16})
//	answer.Wait()     // time to first token by the client's clock, model load taken off
//	answer.Restored   // the restore in the runner's log
//	err = l.Settle(ctx, lab.PagesOf(tokens)) // until the pages of a prompt are files
//	err = l.KillServer()
//	err = l.Restart(ctx)
//
// A lab has one slot, and its requests run one at a time: batches of one request
// would change the times and the low bits of another.
package lab
