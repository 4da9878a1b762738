// Command kvtier looks after the pages that kvtier keeps on disk for Ollama and llama-server.
//
//	kvtier try                       show on a model what is gained
//	kvtier ls | stat                 list and count pages
//	kvtier ps | top | why            slots, time saved, and why prompts were computed
//	kvtier collect                   collect the reports of servers
//	kvtier check | repair            find damage, and move it out of the way
//	kvtier gc | rm                   make room
//	kvtier inspect PAGE              one page: tokens, text, layers
//	kvtier search WORDS              find conversations by meaning
//	kvtier export | import           one conversation as a file
//	kvtier bench                     measure this disk
//	kvtier plan MODEL                size budgets for a model, and advise from counters
//	kvtier limit | balance           limit K/V memory
//	kvtier doctor                    find circumstances that keep pages from helping
//	kvtier ollama install | remove | status
//	                                 put kvtier before the llama-server of a stock Ollama
//	kvtier serve -- llama-server [arguments]
//	                                 run a llama-server of your own behind kvtier
//
// kvtier finds the pages by the variables of the server, or by --root and --remote, and works beside servers
// that use the pages. Package diskstore does the work; a verb here is flags, refusals and output for people.
// Every verb but serve, collect and balance prints JSON with --json.
//
// It exits with 0 when all is well, with 1 when the command failed or a check
// found damage, with 2 when it was called wrongly, with 3 when a check could not look
// at everything or doctor found warnings alone, and with 130 when it was interrupted.
package main
