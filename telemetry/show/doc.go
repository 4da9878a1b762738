// Package show turns the state of a root into rows for people, and explains each cause of a miss.
//
// The rows are also the JSON that programs print. They have no text of prompts. Functions here
// escape nothing: names of models, namespaces and details may come from other people, so a
// program escapes them for its own output.
package show
