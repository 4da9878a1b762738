// Command kvtier looks after the pages that kvtier's Ollama keeps on disk.
//
//	kvtier ls | stat                 what is there
//	kvtier check | repair            is it whole, and make it so
//	kvtier gc | rm                   make room
//	kvtier inspect PAGE              one page: tokens, text, layers
//	kvtier export | import           one conversation as a file
//	kvtier bench                     what to expect of this disk
//
// It finds the pages by the variables of the server, or by --root and --remote,
// and works beside servers that use them. The work is done by package diskstore;
// a verb here is flags, refusals and what a person sees. Every verb prints JSON
// with --json.
//
// It exits with 0 when all is well, with 1 when the command failed or a check
// found damage, and with 2 when a check could not look at everything.
package main
