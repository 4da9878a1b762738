package llamae2e

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// everything is a template that writes all that a chat can have.
const everything = `{% if tools %}<|im_start|>tools
{{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['reasoning_content'] %}<think>{{ message['reasoning_content'] }}</think>{% endif %}{{ message['content'] }}{% for call in message['tool_calls'] or [] %}
<tool_call>
{"name": "{{ call['function']['name'] }}", "arguments": {{ call['function']['arguments'] | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

var long = strings.Repeat("You write programs, and look at files before you change them. ", 60)

// agents are requests of agents, each the one before and more.
var agents = map[string]struct {
	path string
	body []string
}{
	"messages": {"/v1/messages", []string{
		`{"max_tokens":8,"temperature":0,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1; cch=a5145;"},{"type":"text","text":"` + long + `","cache_control":{"type":"ephemeral"}}],
		"tools":[{"name":"read","description":"Reads a <file>","input_schema":{"type":"object","properties":{"path":{"type":"string"},"at":{"type":"integer"}},"required":["path"]}}],
		"messages":[{"role":"user","content":[{"type":"text","text":"Is there a bug?"}]}]}`,
		`{"max_tokens":8,"temperature":0,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1; cch=0b7f2;"},{"type":"text","text":"` + long + `","cache_control":{"type":"ephemeral"}}],
		"tools":[{"name":"read","description":"Reads a <file>","input_schema":{"type":"object","properties":{"path":{"type":"string"},"at":{"type":"integer"}},"required":["path"]}}],
		"messages":[{"role":"user","content":[{"type":"text","text":"Is there a bug?"}]},
			{"role":"assistant","content":[{"type":"thinking","thinking":"I must look.","signature":""},{"type":"text","text":"I look."},{"type":"tool_use","id":"t1","name":"read","input":{"path": "a.go", "at": 5}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"package a"},{"type":"text","text":" // é"}]},{"type":"text","text":"And?"}]}]}`,
	}},
	"responses": {"/v1/responses", []string{
		`{"max_output_tokens":8,"temperature":0,"instructions":"` + long + `","tools":[{"type":"function","name":"read","description":"Reads a <file>","parameters":{"type":"object","properties":{"path":{"type":"string"}}}},{"type":"web_search"}],
		"input":"Is there a bug?"}`,
		`{"max_output_tokens":8,"temperature":0,"instructions":"` + long + `","tools":[{"type":"function","name":"read","description":"Reads a <file>","parameters":{"type":"object","properties":{"path":{"type":"string"}}}},{"type":"web_search"}],
		"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Is there a bug?"}]},
			{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"I must look."}]},
			{"type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"I look."}]},
			{"type":"function_call","call_id":"t1","name":"read","arguments":"{\"path\":\"a.go\"}"},
			{"type":"function_call_output","call_id":"t1","output":"package a // é"},
			{"role":"user","content":"And?"}]}`,
	}},
}

// heard is an answer of another API: its text, and the tokens of its prompt.
type heard struct {
	text          string
	prompt, cache int
}

// hear sends a request and reads the answer, a stream or not.
func (s *server) hear(path, body string, stream bool) (a heard) {
	s.t.Helper()
	type usage struct {
		Input   int  `json:"input_tokens"`
		Read    *int `json:"cache_read_input_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	}
	type part struct{ Text, Thinking string }
	var whole struct {
		Usage   usage
		Content []part                     // of Messages
		Output  []struct{ Content []part } // of Responses
	}
	read := func(u usage) {
		a.prompt, a.cache = u.Input, u.Details.Cached
		if u.Read != nil {
			a.prompt, a.cache = u.Input+*u.Read, *u.Read
		}
	}
	if !stream {
		s.read(path, json.RawMessage(body), &whole)
		read(whole.Usage)
		for _, p := range whole.Content {
			a.text += p.Thinking + p.Text
		}
		for _, o := range whole.Output {
			for _, p := range o.Content {
				a.text += p.Text
			}
		}
		return a
	}
	_, lines := s.events(path, json.RawMessage(strings.TrimSuffix(body, "}")+`,"stream":true}`))
	for _, line := range lines {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e struct {
			Type     string
			Message  struct{ Usage usage }
			Response struct{ Usage usage }
			Delta    json.RawMessage
		}
		require.NoError(s.t, json.Unmarshal([]byte(data), &e))
		switch e.Type {
		case "message_start":
			read(e.Message.Usage)
		case "response.completed":
			read(e.Response.Usage)
		}
		var delta part
		if json.Unmarshal(e.Delta, &delta) == nil {
			a.text += delta.Thinking + delta.Text
		} else {
			var text string
			_ = json.Unmarshal(e.Delta, &text)
			a.text += text
		}
	}
	return a
}

// TestOtherAPIsComeBack: what agents send to /v1/messages and /v1/responses comes back after a kill, and
// when two conversations take turns. A stock server gives the same answers.
func TestOtherAPIsComeBack(t *testing.T) {
	for _, shape := range []testmodel.Shape{{Arch: "qwen3"}, {Arch: "lfm2"}} {
		for name, agent := range agents {
			t.Run(shape.Arch+"/"+name, func(t *testing.T) {
				o := chatting(t, shape)
				stock := start(t, o)
				var want []heard
				for _, body := range agent.body {
					want = append(want, stock.hear(agent.path, body, false))
				}
				stock.Kill()

				o.Root = filepath.Join(t.TempDir(), "pages")
				s := start(t, o)
				states := shape.Arch == "lfm2" // of which there is one at the last turn's end, behind a stream alone
				require.Zero(t, s.hear(agent.path, agent.body[0], states).cache)
				s.complete(someTokens(9, 300), 3)
				second := s.hear(agent.path, agent.body[1], true)
				require.Equal(t, want[1].text, second.text)
				require.Equal(t, want[1].prompt, second.prompt)
				require.Greater(t, second.cache, 1000, "of the prompt before")
				s.Kill()

				s = start(t, o)
				again := s.hear(agent.path, agent.body[1], true)
				require.Equal(t, want[1].text, again.text)
				require.GreaterOrEqual(t, again.cache, again.prompt-120)
				if !states {
					require.Equal(t, again.prompt-1, again.cache)
				}
				require.NotContains(t, s.killed(), "makes other prompts")
			})
		}
	}
}

// coder is a conversation by /v1/messages whose client runs the tools that the model would call.
type coder struct {
	system string
	said   []any
}

// turn sends the conversation, and goes on with the answer and what a tool says.
func (c *coder) turn(s *server, question string) heard {
	type m map[string]any
	if len(c.said) == 0 {
		c.said = append(c.said, m{"role": "user", "content": question})
	}
	body, err := json.Marshal(m{
		"max_tokens": 8, "temperature": 0, "system": []any{m{"type": "text", "text": c.system}}, "messages": c.said,
		"tools": []any{m{"name": "read", "description": "Reads a <file>", "input_schema": m{"type": "object", "properties": m{"path": m{"type": "string"}}}}},
	})
	require.NoError(s.t, err)
	answer := s.hear("/v1/messages", string(body), true)
	c.said = append(c.said,
		m{"role": "assistant", "content": []any{m{"type": "text", "text": answer.text}, m{"type": "tool_use", "id": "t", "name": "read", "input": m{"path": "a.go"}}}},
		m{"role": "user", "content": []any{m{"type": "tool_result", "tool_use_id": "t", "content": "package a // " + question}, m{"type": "text", "text": question}}})
	return answer
}

// shorter is another text than long.
var shorter = strings.Repeat("Answer as a poet would, in few words. ", 40)

// TestMessagesInSeveralSlots: llama-server chooses the slots of two conversations by /v1/messages, beside a chat
// whose slot we choose. All go on in their slots, and come back after each kill, with the answers of a stock server
// that is never killed.
func TestMessagesInSeveralSlots(t *testing.T) {
	for _, c := range []struct{ arch, slots string }{{"qwen3", "2"}, {"qwen3", "4"}, {"lfm2", "2"}, {"gemma3", "4"}} {
		t.Run(c.arch+"/"+c.slots, func(t *testing.T) {
			o := chatting(t, testmodel.Shape{Arch: c.arch})
			o.Args = append(o.Args, "-c", "16384", "-np")
			stock := start(t, llamatest.Options{Model: o.Model, Args: append(slices.Clone(o.Args), "4")})
			o.Args, o.Root = append(o.Args, c.slots), filepath.Join(t.TempDir(), "pages")
			s := start(t, o)
			theirs, ours := []*coder{{system: long}, {system: shorter}}, []*coder{{system: long}, {system: shorter}}
			var before [2]heard
			for turn, question := range []string{"Is there a bug?", "And?", "Why?", "Is that all?"} {
				if turn > 0 && turn != 2 {
					s.Kill()
					s = start(t, o)
				}
				for i := range ours {
					want, got := theirs[i].turn(stock, question), ours[i].turn(s, question)
					require.Equal(t, want.text, got.text)
					require.Equal(t, want.prompt, got.prompt)
					require.GreaterOrEqual(t, got.cache, before[i].prompt-20, "all but the opening of the answer")
					before[i] = got
				}
				chat := map[string]any{"messages": []any{map[string]string{"role": "user", "content": strings.Repeat("What now? ", 50*(turn+1))}}, "max_tokens": 4, "temperature": 0}
				var want, got struct{ Choices []any }
				stock.read("/v1/chat/completions", chat, &want)
				s.read("/v1/chat/completions", chat, &got)
				require.Equal(t, want, got)
			}
			log := s.killed()
			require.NotContains(t, log, "makes other prompts")
			require.NotContains(t, log, "in any slot")
		})
	}
}

// TestManyMessagesAtOnce: conversations that begin alike, at the same time and beside others, are stored.
func TestManyMessagesAtOnce(t *testing.T) {
	for _, args := range [][]string{{"-np", "2"}, {"-np", "4", "--kv-unified"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			o := chatting(t, testmodel.Shape{Arch: "qwen3"})
			o.Args = append(o.Args, append([]string{"-c", "16384"}, args...)...)
			o.Root = filepath.Join(t.TempDir(), "pages")
			s := start(t, o)
			coders := []*coder{{system: long}, {system: long}, {system: long}}
			var before []byte // of the log, before a round without other prompts
			for round := range 3 {
				var all sync.WaitGroup
				before, _ = os.ReadFile(s.log)
				for i, c := range coders {
					all.Add(2)
					go func() {
						defer all.Done()
						c.turn(s, "Look at file "+strconv.Itoa(i))
					}()
					go func() {
						defer all.Done()
						if round < 2 {
							s.complete(someTokens(i, 300), 4)
						}
					}()
				}
				all.Wait()
			}
			log := s.killed()
			lost := strings.Contains(log, "in any slot") || // llama-server was slow to answer
				strings.Contains(log[len(before):], "slot not stored") // another turn took it while one was looked for
			s = start(t, o)
			for i, c := range coders {
				again := c.turn(s, "Look at file "+strconv.Itoa(i))
				require.True(t, lost || again.cache >= again.prompt-120, "%d of %d", again.cache, again.prompt)
			}
		})
	}
}

// TestOtherPromptsComeBack: lists of one prompt, and what an editor sends to /infill while it changes what is around
// a gap, which may be shortened. After each kill a request goes on where the last one has ended, as in a stock server
// that is not killed; with recurrent layers from the third time on. Then all come back.
func TestOtherPromptsComeBack(t *testing.T) {
	type m = map[string]any
	files := []any{m{"filename": "a.go", "text": long + "<|im_end|>"}, m{"text": shorter}}
	lists := []m{{"prompt": []any{long}}, {"prompt": []any{someTokens(3, 400)}}, {"prompt": []any{5, long, 6, "and more"}}, {"prompt": []any{[]any{"begin", 7, long}}}}
	edits := []m{
		{"input_prefix": long, "input_suffix": "}\n", "input_extra": files},
		{"input_prefix": long[:len(long)-9] + "work", "input_suffix": "} // of it\n", "input_extra": files, "prompt": "\tre"},
		{"input_prefix": long[:len(long)-9] + "play", "input_suffix": []any{"}", 7, shorter}, "input_extra": files, "prompt": 5},
		{"input_prefix": []any{5, long}, "input_suffix": ""},
	}
	for _, c := range []struct {
		arch, path, args string
		requests         []m
		states           bool // it goes on only where a sequence ended
	}{
		{"llama", "/completion", "-c 4096", lists, false},
		{"llama", "/infill", "-c 4096", edits, false},
		{"llama", "/infill", "-c 8192 -np 2 --spm-infill", edits, false},
		{"llama", "/infill", "-c 1024 -b 256 --predict 100", edits, false},
		{"lfm2", "/infill", "-c 4096", edits, true},
	} {
		t.Run(c.arch+c.path+c.args, func(t *testing.T) {
			o := llamatest.Options{Model: aModel(t, testmodel.Shape{Arch: c.arch, Infill: c.path == "/infill"}), Args: append([]string{"-np", "1"}, strings.Fields(c.args)...)}
			stock := start(t, o)
			o.Root = filepath.Join(t.TempDir(), "pages")
			s := start(t, o)
			for i, in := range slices.Concat(c.requests, c.requests) {
				maps.Copy(in, m{"n_predict": 4, "logit_bias": [][]float64{{500, 100}}}) // rounding chooses no tokens
				want, got := stock.ask(c.path, in), s.ask(c.path, in)
				theirs, ours, bound := want.Timings, got.Timings, 0.02
				require.Equal(t, theirs.Cached+theirs.Computed, ours.Cached+ours.Computed)
				switch again := i >= len(c.requests); {
				case c.states:
					require.True(t, i != 2 || ours.Cached > 2000, "%+v", ours)
				case again:
					require.Less(t, ours.Computed, 16)
				default:
					require.True(t, theirs.Cached < 64 || ours.Cached >= theirs.Cached, "%+v, %+v", theirs, ours)
				}
				if !c.states && theirs == ours { // in the same batches
					bound = 0
				}
				requireSame(t, want, got, bound)
				if i < len(c.requests) {
					s.Kill()
					s = start(t, o)
				}
			}
			require.NotContains(t, s.killed(), "makes other prompts")
		})
	}
}

// TestInfillIsAsInAStockServer: streams, and errors, that of a model without tokens for a gap among them.
func TestInfillIsAsInAStockServer(t *testing.T) {
	const gap = `{"seed":1,"temperature":0,"n_predict":4,"input_suffix":""`
	stream := func(s *server) []string {
		_, lines := s.events("/infill", json.RawMessage(gap+`,"input_prefix":"`+shorter+`","stream":true}`))
		return append(lines[:len(lines)-1], strings.Split(lines[len(lines)-1], `"timings"`)...)
	}
	for _, infill := range []bool{true, false} {
		o := llamatest.Options{Model: aModel(t, testmodel.Shape{Arch: "qwen3", Infill: infill}), Args: []string{"-c", "1024", "-np", "1"}}
		stock := start(t, o)
		o.Root = filepath.Join(t.TempDir(), "pages")
		s := start(t, o)
		if infill {
			want, got := stream(stock), stream(s)
			require.Equal(t, want[:len(want)-1], got[:len(got)-1])
			named := json.RawMessage(gap + `,"input_prefix":"` + shorter + `","response_fields":["content","timings/prompt_n","nothing","tokens_cached"]}`)
			_, whole := stock.post("/infill", named)
			_, ours := s.post("/infill", named)
			require.Equal(t, string(whole), string(ours))
		}
		for _, rest := range []string{
			`}`, `,"input_prefix":5}`, `,"input_prefix":[null]}`, `,"input_prefix":"a","input_suffix":{}}`, `,"input_prefix":"a","input_extra":null}`,
			`,"input_prefix":"a","input_extra":[1]}`, `,"input_prefix":"a","input_extra":[{"text":1}]}`, `,"input_prefix":"a","input_extra":[{"text":"a","filename":null}]}`,
			`,"input_prefix":"a","grammar":"("}`, `,"input_prefix":"` + long + long + `"}`,
		} {
			wantStatus, want := stock.post("/infill", json.RawMessage(gap+rest))
			status, got := s.post("/infill", json.RawMessage(gap+rest))
			require.Equal(t, wantStatus, status, rest)
			require.GreaterOrEqual(t, status, 400)
			require.Equal(t, string(want), string(got))
		}
		if infill {
			// After a request that may have run in it the slot is emptied. It was saved, and is found by this branch.
			require.Eventually(t, func() bool {
				tails, err := filepath.Glob(filepath.Join(o.Root, "v1", "*", "prefixes", "*", "*", "tail-*"))
				return err == nil && len(tails) > 0
			}, startMax, time.Millisecond)
			again := stream(s)
			require.Contains(t, again[len(again)-1], `"prompt_n":1,`, "no error has lost the prompt")
		}
	}
}
