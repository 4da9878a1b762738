// Package page is a web page that shows the state of a root: one HTML file without
// requests to other places, and the state as JSON for it.
//
// A page is read by anyone who reaches its listener, so it holds no text of prompts: [Handler]
// removes every [telemetry.Words] from the state, whichever reader it has been given.
//
// The files in assets are put together when the program starts: page.html holds the places for page.css and
// the scripts. The scripts are plain functions: format.js writes numbers as the command line does, view.js
// turns a state into rows and points, dom.js makes elements, and the others draw. Text of a state gets into
// the document as text alone, never as HTML, and the Content-Security-Policy lets no other script run.
//
// The tests open the page in a headless Chromium. These make the pictures of docs/kvtier.md, of a
// server that has answered prompts:
//
//	go test ./telemetry/page -run Documents -shots "$PWD/docs" -of http://127.0.0.1:9401
package page
