package main

import (
	"fmt"
	"io"
	"time"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/table"
)

// Report is all that was measured.
type Report struct {
	Machine         measure.Machine `json:"machine"`
	Go              string          `json:"go"`
	Model           string          `json:"model"`
	KVBytesPerToken int64           `json:"kv_bytes_per_token"`
	TTFT            []Point         `json:"ttft,omitempty"`
	Chat            *Chat           `json:"chat,omitempty"`
	Switch          *Switch         `json:"switch,omitempty"`
	Hot             *Hot            `json:"hot,omitempty"`
}

// times are repeated times, in seconds.
type times struct{ measure.Series }

// last is the latest time, as text.
func (t *times) last() string {
	if len(t.Values) == 0 {
		return ""
	}
	return seconds(t.Values[len(t.Values)-1])
}

// Point is one length of ttft: times to first token.
type Point struct {
	Tokens int   `json:"tokens"`
	Reused int   `json:"reused"` // tokens, by ours
	Cold   times `json:"cold"`   // ours, with nothing stored
	Stock  times `json:"stock"`
	Whole  times `json:"whole"`
	Ours   times `json:"ours"`
}

// Chat is the bytes written for each new byte of K and V.
type Chat struct {
	Turns         int     `json:"turns"`
	TokensPerTurn int     `json:"tokens_per_turn"`
	WholeLoaded   float64 `json:"whole_loaded"`
	WholeUnloaded float64 `json:"whole_unloaded"`
	OursLoaded    float64 `json:"ours_loaded"`
	OursUnloaded  float64 `json:"ours_unloaded"`
}

// Switch is many conversations on one slot.
type Switch struct {
	Conversations int       `json:"conversations"`
	Tokens        int       `json:"tokens"`
	Reading       float64   `json:"reading"` // seconds to read a conversation's pages
	Stock         Switching `json:"stock"`
	RAM           Switching `json:"ram"`
	Ours          Switching `json:"ours"`
}

// Switching is one side of Switch.
type Switching struct {
	First  times `json:"first"`  // token after a switch
	Reused int   `json:"reused"` // tokens, of all conversations
	Memory int64 `json:"memory"` // the most bytes that all processes took
}

// Hot is requests whose prompt the slot holds.
type Hot struct {
	PromptTokens int            `json:"prompt_tokens"`
	AnswerTokens int            `json:"answer_tokens"`
	Added        measure.Series `json:"added"` // seconds, ours less stock
	Speed        measure.Series `json:"speed"` // tokens per second, ours over stock
}

func seconds(s float64) string { return show.Seconds(time.Duration(s * float64(time.Second))) }

// print prints tables for people.
func (r *Report) print(w io.Writer) {
	if r.Machine.BusyBefore > measure.BusyShare {
		fmt.Fprintf(w, "\nThe machine was busy (%s): the figures may suffer.\n", show.Percent(r.Machine.BusyBefore))
	}
	r.printTTFT(w)
	if c := r.Chat; c != nil {
		fmt.Fprintf(w, "\nBytes written per new byte of K and V, %d turns of %d tokens\n\n", c.Turns, c.TokensPerTurn)
		table.Print(w, []string{"", "WHOLE SLOT", "OURS"}, [][]string{
			{"model stays loaded", fmt.Sprintf("%.2f", c.WholeLoaded), fmt.Sprintf("%.2f", c.OursLoaded)},
			{"unloaded after each turn", fmt.Sprintf("%.2f", c.WholeUnloaded), fmt.Sprintf("%.2f", c.OursUnloaded)},
		})
	}
	if s := r.Switch; s != nil {
		fmt.Fprintf(w, "\n%d conversations of %s tokens take turns on one slot\n\n", s.Conversations, show.Count(s.Tokens))
		var rows [][]string
		for _, side := range []struct {
			name string
			Switching
		}{{"stock", s.Stock}, {"--cache-ram", s.RAM}, {"ours", s.Ours}} {
			rows = append(rows, []string{side.name, seconds(side.First.Median), show.Count(int(side.Memory/1e6)) + " MB"})
		}
		rows = append(rows, []string{"reading the pages", seconds(s.Reading), ""})
		table.Print(w, []string{"", "FIRST TOKEN", "MEMORY"}, rows)
	}
	if h := r.Hot; h != nil {
		fmt.Fprintf(w, "\nA slot that holds the prompt: ours adds %s to a request (%s to %s); answers come at %s of the speed.\n",
			seconds(h.Added.Median), seconds(h.Added.Min), seconds(h.Added.Max), show.Percent(h.Speed.Median))
	}
}

func (r *Report) printTTFT(w io.Writer) {
	if len(r.TTFT) == 0 {
		return
	}
	fmt.Fprint(w, "\nTime to first token after kill -9\n\n")
	var rows [][]string
	for _, p := range r.TTFT {
		rows = append(rows, []string{
			show.Count(p.Tokens), show.Count(p.Reused), seconds(p.Cold.Median), seconds(p.Stock.Median), seconds(p.Whole.Median),
			seconds(p.Ours.Median), show.Times(p.Stock.Median / p.Ours.Median),
		})
	}
	table.Print(w, []string{"PROMPT TOKENS", "REUSED", "COLD", "STOCK", "WHOLE SLOT", "OURS", "SPEEDUP"}, rows)
}
