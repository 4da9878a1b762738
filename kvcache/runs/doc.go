// Package runs finds text that is stored at another position than a prompt wants.
//
// A page's key covers all tokens before the page. A conversation whose oldest messages were
// left out therefore shares no key with its stored pages, though most of its text is the
// same. An [Index] knows the tokens of the pages used lately and answers two questions: which
// page continues like a prompt for a while before the two part, and where a run of the
// prompt's tokens is stored that holds at least one full page.
//
// A run begins anywhere in a page, and is found by the full pages in it: a hash rolls over
// the prompt, one window of a page's length after the other, and the tokens before a page
// that is found are compared backwards. Tokens are compared, never only hashes.
package runs
