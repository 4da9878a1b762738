package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kvtier/kvtier/internal/testmodel/trained"
)

const (
	tableLines = 8
	tableSeed  = 1
	// tableShare is the part of the text behind the table: 1/8 of the default is 500 tokens.
	tableShare = 8

	question = "\n\nWhat is the text above about?"
)

// script is the text of a demo's requests.
type script struct {
	text     string // the prompt without its question
	question string
	other    string // the prompt of another chat
	raw      bool   // the model has no chat
	lookUps  []trained.LookUp
}

func (s script) prompt() string { return s.text + s.question }

// chat asks about a text of the given size.
func chat(text string, bytes int) script {
	return script{
		text: excerpt(text, 0, bytes), question: question,
		other: excerpt(text, len(text)-otherBytes, otherBytes) + question,
	}
}

// withTable asks about a table within a text of the given size.
func withTable(text string, bytes int) script {
	table, lookUps := trained.Table(tableSeed, tableLines)
	at := bytes - bytes/tableShare
	return script{
		text:     excerpt(text, 0, at) + table + "\n" + excerpt(text, at, bytes-at),
		question: lookUps[0].Question,
		other:    excerpt(text, len(text)-otherBytes, otherBytes),
		raw:      true, lookUps: lookUps,
	}
}

// documents are the texts to read, in order, as patterns below the repository. The last ones
// are Ollama's, in the source that patch-ollama unpacks.
var documents = []string{
	"README.md", "LICENSE", "docs/*.md", "*.md", "patches/*.md", "patches/*.patch", "patches/optional/*/*.patch",
	"build/ollama/src/LICENSE", "build/ollama/src/README.md", "build/ollama/src/docs/*.md", "build/ollama/src/docs/*.mdx",
}

// readText returns the text that the script is cut from: the named file, or all documents one
// after the other, behind a text that the trained model has not seen.
func (s settings) readText(repository string) (string, error) {
	if s.text != "" {
		data, err := os.ReadFile(s.text)
		if err != nil {
			return "", fmt.Errorf("reading the text: %w", err)
		}
		return strings.ToValidUTF8(string(data), ""), nil
	}
	var text strings.Builder
	if s.trained() {
		text.WriteString(trained.Prose() + "\n")
	}
	var seen []string
	for _, pattern := range documents {
		paths, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil {
			return "", fmt.Errorf("looking for documents: %w", err)
		}
		for _, path := range paths {
			if slices.Contains(seen, path) {
				continue
			}
			seen = append(seen, path)
			data, err := os.ReadFile(path)
			if err != nil {
				return "", fmt.Errorf("reading a document: %w", err)
			}
			name, _ := filepath.Rel(repository, path)
			fmt.Fprintf(&text, "# File %s\n\n%s\n\n", filepath.ToSlash(name), strings.ToValidUTF8(string(data), ""))
		}
	}
	return text.String(), nil
}

// excerpt is about n bytes of text from an offset on, cut between characters.
func excerpt(text string, offset, n int) string {
	return text[boundary(text, offset):boundary(text, offset+n)]
}

// boundary is the first start of a character at or after i, or the end.
func boundary(text string, i int) int {
	for i < len(text) && !utf8.RuneStart(text[i]) {
		i++
	}
	return min(i, len(text))
}
