package page

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

//go:embed assets
var assets embed.FS

// scripts in the order in which the page runs them.
var scripts = []string{"format.js", "words.js", "view.js", "dom.js", "charts.js", "tables.js", "main.js"}

// document is the whole page, and policy its Content-Security-Policy: the page runs its own
// script, uses its own style, and talks to its own server.
var document, policy = assemble()

func assemble() (html, csp string) {
	style := asset("page.css")
	var code strings.Builder
	code.WriteString("'use strict';\n")
	for _, name := range scripts {
		code.WriteString(asset(name))
	}
	script := strings.NewReplacer("/*explanations*/", explanations(), "/*obstacles*/", obstacles(),
		"/*silent*/", fmt.Sprint(telemetry.SilentAfter.Seconds())).Replace(code.String())
	html = strings.NewReplacer("/*style*/", style, "/*script*/", script).Replace(asset("page.html"))
	csp = "default-src 'none'; script-src " + hashOf(script) + "; style-src " + hashOf(style) +
		"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return html, csp
}

// explanations has, as JSON, two sentences for each cause: the meaning and the remedy.
func explanations() string {
	all := make(map[telemetry.Cause]string)
	for _, e := range telemetry.Causes {
		all[e.Cause] = strings.ToUpper(e.Means[:1]) + e.Means[1:] + ". " + remedies.Replace(e.Remedy)
	}
	return object(all)
}

// obstacles has, as JSON, the meaning and the remedy of each reason for which nothing is stored.
func obstacles() string {
	all := make(map[telemetry.Obstacle][2]string)
	for _, e := range telemetry.Obstacles {
		all[e.Cause] = [2]string{e.Means, remedies.Replace(e.Remedy)}
	}
	return object(all)
}

func object(all any) string {
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // a map of strings is JSON
	}
	return string(text)
}

// remedies makes remedies, which stand in a column of remedies elsewhere, whole sentences.
var remedies = strings.NewReplacer("None is needed", "No action is needed", "None: ", "")

func asset(name string) string {
	text, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // the file is part of the program
	}
	return string(text)
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// Handler serves the page at / and the state at /state.json. read returns the state, and ends with
// its context, also while a disk hangs. Below another path, put Handler behind [http.StripPrefix], and
// let the path end with a slash. Package listen keeps other methods, other sites, caches and too many
// requests at a time away.
func Handler(read func(context.Context) (telemetry.State, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/state.json":
			serveState(w, r, read)
		case "/":
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.Header().Set("Content-Security-Policy", policy)
			_, _ = w.Write([]byte(document)) // an error means that the client has gone
		default:
			http.NotFound(w, r)
		}
	})
}

const readLimit = 3 * time.Second

// serveState answers with the state as JSON, or with 503 and {"error": reason}.
func serveState(w http.ResponseWriter, r *http.Request, read func(context.Context) (telemetry.State, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	w.Header().Set("Content-Type", "application/json")
	state, err := read(ctx)
	if errors.Is(err, fs.ErrNotExist) { // nothing is reported yet: the page says how to begin
		state.At, err = time.Now(), nil
	}
	var body []byte
	if err == nil {
		body, err = json.Marshal(state.WithWords(nil))
	}
	if err != nil { // the error names paths
		w.WriteHeader(http.StatusServiceUnavailable)
		body = []byte(`{"error":"The state could not be read. kvtier doctor looks for the cause."}`)
	}
	_, _ = w.Write(body) // an error means that the client has gone
}
