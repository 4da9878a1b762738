// Package docs has pages of the documents for programs.
package docs

import _ "embed"

// Durability is the page about what a store survives.
//
//go:embed durability.md
var Durability string
