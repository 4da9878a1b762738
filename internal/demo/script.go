package main

import "github.com/kvtier/kvtier/internal/testmodel/trained"

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

// readText returns the text that the script is cut from.
func (s settings) readText(repository string) (string, error) {
	first := ""
	if s.trained() {
		first = trained.Prose() + "\n"
	}
	return readText(s.text, first, repository)
}
