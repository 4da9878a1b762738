package llamae2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
				s.Kill()
				log, err := os.ReadFile(s.log)
				require.NoError(t, err)
				require.NotContains(t, string(log), "makes other prompts")
			})
		}
	}
}
