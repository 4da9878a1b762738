// Command plot draws the README's picture from the figures of internal/bench:
// time to first token against the length of the prompt, by stock Ollama and
// restored after kill -9.
//
//	go -C tools run ./plot ../docs/bench/cpu.json ../docs/ttft.svg ../docs/ttft.png
//
// The ending of a file name chooses its format, svg or png. Both axes are
// logarithmic. The picture has a background of its own, so that it can be read
// on a dark page, too.
package main
