package machine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Quote writes a value as one word of a shell.
func Quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._:=@%+,-", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// InUnit writes a value as one word of a systemd unit.
func InUnit(word string) string {
	if word = strings.ReplaceAll(word, "%", "%%"); word != "" && !strings.ContainsAny(word, " \t\"'\\") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}

// Command is a command line for a shell.
func Command(words ...string) string {
	var line []string
	for _, word := range words {
		line = append(line, Quote(word))
	}
	return strings.Join(line, " ")
}

// Self is the path by which this program was called: under another name it may do something else.
func Self() string {
	path, err := exec.LookPath(os.Args[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return os.Args[0] // which is all that is known
	}
	return path
}

// WithSudo is this program's command line with other arguments, for root. sudo has a PATH of its own.
func WithSudo(args ...string) string { return Command(append([]string{"sudo", Self()}, args...)...) }

// Capital begins a sentence with a capital letter, unless it begins with a path, a unit or a variable.
func Capital(sentence string) string {
	if word, _, _ := strings.Cut(sentence, " "); strings.ContainsAny(word, "/.=") {
		return sentence
	}
	first, size := utf8.DecodeRuneInString(sentence)
	return string(unicode.ToUpper(first)) + sentence[size:]
}
