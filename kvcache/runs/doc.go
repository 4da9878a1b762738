// Package runs finds text that is stored at another position than the one it is wanted at.
//
// A page's key says what stands before it, so a conversation whose oldest messages were left
// out shares no key with what was stored of it, though most of its text is the same. An
// [Index] knows the tokens of the pages used lately and answers two questions: which page
// goes on like a prompt for a while before they part, and where a run of the prompt's tokens
// was stored that holds at least one whole page.
//
// Runs begin anywhere in a page. They are found by the pages they hold: a hash rolls over the
// prompt, one window of a page's length after the other, and what is before a page that it
// finds is compared backwards. Tokens are compared, never only hashes.
package runs
