package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// documents are the texts to read, in order, as patterns below the repository. The last ones
// are Ollama's, in the source that patch-ollama unpacks.
var documents = []string{
	"README.md", "LICENSE", "docs/*.md", "*.md", "patches/*.md", "patches/*.patch", "patches/optional/*/*.patch",
	"build/ollama/src/LICENSE", "build/ollama/src/README.md", "build/ollama/src/docs/*.md", "build/ollama/src/docs/*.mdx",
}

// readText returns the named file, or first and all documents one after the other.
func readText(file, first, repository string) (string, error) {
	if file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("reading the text: %w", err)
		}
		return strings.ToValidUTF8(string(data), ""), nil
	}
	var text strings.Builder
	text.WriteString(first)
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
