// Package llamatier keeps the slots of a llama-server in a page store.
//
// An [Engine] is a running llama-server. A [Tier] knows which tokens each of the engine's
// slots holds. Before a request, [Tier.Begin] chooses the slot and puts stored pages into it,
// as one file that llama-server restores; where nothing can come between, the request may follow while
// llama-server reads the file. [Tier.Resume] goes on in a slot instead. Some seconds after a request, llama-server saves the
// slot into a file, and the Tier stores the pages that are new. Package slotfile makes the files.
//
// The Tier need not know the tokens of a slot exactly: llama-server compares a prompt with a
// slot itself, and computes the rest. A file that is restored must be right; package llamastate
// says how that is ensured. A slot whose context may have been shifted is not stored, because
// its rows may no longer belong to its tokens: see [Answer].
//
// After any failure the engine computes the prompt, as without a Tier.
//
// # Parts
//
// A Tier leads a request through its parts, which get their inputs and do not know the Tier:
//
//	table                     table.go               the slots, the requests that wait for one, requests of which nothing is known
//	tenants                   tenant.go              whose rows a slot has, and requests in any slot that must be alone
//	sequence                  slot.go                the tokens and rows in one slot, as far as they are known
//	asker                     question.go            questions to the engine, and how many tokens it has generated
//	actor                     action.go              saving, restoring and emptying a slot
//	saver                     save.go, sink.go       a save: sink drops the rows that are stored, pages stores the others
//	judge                     judge.go               whether the rows of a saved slot may be stored
//	planner, reader           plan.go                how far a prompt is restored, and its pages
//	loader                    load.go                the file of a plan, or a stream of it
//	restorer                  restore.go             a restore: the plan, its file, room among the other slots
//	stages                    stage.go               in which steps a prompt is computed
//	search                    search.go              the search for the slot that the engine has chosen for a request
//	accounting                account.go             the end of a request; engine.Inquirer explains misses
//	obstacles                 cause.go               causes for which slots are not stored
//	album                     media.go               the tokens that llama-server makes of images
//	form, files, disk         files.go               the form of files and pages; files and a store on a disk that may hang
//
// Beside them, tier.go and turn.go are the Tier and its requests, options.go has the limits of waits for the
// engine, too, engine.go is the llama-server. The planner and the loader ask package
// engine which pages are read and which computed.
//
// The goroutine that made a slot busy owns its sequence, and needs no lock for it. table.mu guards
// the sequences of free slots, and the other fields of all slots. asker, album, stream and sink have
// locks of their own. No two of these five locks are held at once.
package llamatier
