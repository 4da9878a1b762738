package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamatier"
)

// TestOtherAPIsAreChats: the chat that llama-server makes of a body, in server-chat.cpp.
func TestOtherAPIsAreChats(t *testing.T) {
	for _, c := range []struct {
		convert  func(members) (members, error)
		in, want string
	}{
		{fromMessages, `{"system":"be brief","max_tokens":5,"messages":[{"role":"user","content":"hi"},{"role":"assistant"},{"role":"user"}]}`,
			`{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"},{"role":"user"}]}`},
		{fromMessages, `{"system":[{"type":"text","text":"x-anthropic-billing-header: cch=a5145;You"},{"type":"text","text":" are"}],"messages":[]}`,
			`{"messages":[{"role":"system","content":"x-anthropic-billing-header: cch=fffff;You are"}]}`},
		{fromMessages, `{"system":"x-anthropic-billing-header: cch=a51;","messages":[]}`,
			`{"messages":[{"role":"system","content":"x-anthropic-billing-header: cch=a51;"}]}`},
		{fromMessages, `{"system":"say cch=a5145;","messages":[]}`, `{"messages":[{"role":"system","content":"say cch=a5145;"}]}`},
		{fromMessages, `{"tools":[{"name":"f","input_schema":{"b":1,"a":2}},{"name":"g","description":"d"}],"tool_choice":{"type":"tool","name":"f"},"chat_template_kwargs":{"k":1},"messages":[]}`,
			`{"messages":null,"tools":[{"type":"function","function":{"name":"f","description":"","parameters":{"b":1,"a":2}}},
			{"type":"function","function":{"name":"g","description":"d","parameters":{}}}],"tool_choice":"required","chat_template_kwargs":{"k":1}}`},
		{fromMessages, `{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"a"},{"type":"tool_use","id":"1","name":"f","input":{"z": 1.0,"a": "é b"}},{"type":"thinking","thinking":"b"}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"r"},{"type":"tool_result","tool_use_id":"2"},{"type":"text","text":"t","cache_control":{}}]}]}`,
			`{"messages":[{"role":"assistant","content":"","reasoning_content":"ab","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"z\":1.0,\"a\":\"é b\"}"}}]},
			{"role":"user","content":[{"type":"text","text":"t","cache_control":{}}]},{"role":"tool","tool_call_id":"1","content":"r"},{"role":"tool","tool_call_id":"2","content":""}]}`},
		{fromMessages, `{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"AA"}},{"type":"image","source":{"type":"url","url":"u"}},{"type":"image","source":{"type":"file"}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"t"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"BB"}}]}]}]}`,
			`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,AA"}},{"type":"image_url","image_url":{"url":"u"}}]},
			{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"t"},{"type":"image_url","image_url":{"url":"data:image/png;base64,BB"}}]}]}`},
		{fromResponses, `{"model":"m","instructions":"be brief","input":"hi","max_output_tokens":5,"reasoning":{"effort":"low"},"id_slot":1}`,
			`{"model":"m","max_output_tokens":5,"reasoning_effort":"low","id_slot":1,"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]}`},
		{fromResponses, `{"input":[{"type":"message","status":"s","role":"developer","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"u"}]},
			{"type":"reasoning","summary":[],"content":[{"text":"think"}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call","call_id":"2","name":"g","arguments":"{}"},
			{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"},{"type":"refusal","refusal":"no"}]},
			{"type":"function_call_output","call_id":"1","output":"o"},{"type":"function_call_output","call_id":"2","output":[{"type":"input_text","text":"p"}]}],
			"tools":[{"type":"web_search"},{"type":"function","name":"f","parameters":{}}]}`,
			`{"messages":[{"role":"developer","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}}]},
			{"role":"assistant","reasoning_content":"think","content":[{"type":"text","text":"b"},{"type":"refusal","refusal":"no"}],
			"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"2","type":"function","function":{"name":"g","arguments":"{}"}}]},
			{"role":"tool","tool_call_id":"1","content":"o"},{"role":"tool","tool_call_id":"2","content":[{"type":"text","text":"p"}]}],
			"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]}`},
		{fromResponses, `{"input":[{"type":"reasoning","summary":[],"content":[{"text":"think"}]},{"type":"message","role":"user","content":"u"}]}`,
			`{"messages":[{"role":"assistant","content":[],"reasoning_content":"think"},{"role":"user","content":[{"type":"text","text":"u"}]}]}`},
	} {
		in := object(json.RawMessage(c.in))
		out, err := c.convert(in)
		require.NoError(t, err)
		require.JSONEq(t, c.want, string(encode(out)))
		require.JSONEq(t, c.in, string(encode(in)), "the request is as it was")
	}
	for text, want := range map[string]string{
		``: `{}`, `null`: `{}`, ` {"a" : [1, 2.50,{}] , "b":null} `: `{"a":[1,2.5,{}],"b":null}`,
		`"\u003ca\u00e9\/\u0001"`: `"<aé/\u0001"`, `{"a\"1.50":"x\\","b":["say \"2.50\" \\\" 3.0",1.50]}`: `{"a\"1.50":"x\\","b":["say \"2.50\" \\\" 3.0",1.5]}`,
		`[1e5,1.0,1e20,1e-5,0.0001,-0.0,18446744073709551615,1e15,123456.789]`: `[100000.0,1.0,1e+20,1e-05,0.0001,-0.0,18446744073709551615,1e+15,123456.789]`,
	} {
		require.Equal(t, want, dump(json.RawMessage(text)))
	}
	for _, body := range []string{`{"input":"a","previous_response_id":"b"}`, `{"input":"a","tools":{}}`, `{"input":[{"type":"item_reference"}]}`, `{"input":[{"type":"reasoning"}]}`, `{"input":[{"role":"user","content":[{"type":"input_file"}]}]}`} {
		_, err := fromResponses(object(json.RawMessage(body)))
		require.Error(t, err, body)
	}
}

// FuzzConvert: no body ends the daemon.
func FuzzConvert(f *testing.F) {
	f.Add([]byte(`{"messages":[null,{"role":"user","content":[null,{"type":"tool_result","content":[null]}]}],"tools":[null],"system":[null]}`))
	f.Add([]byte(`{"input":[null,{"role":"assistant","type":"message","content":[null]}],"tools":[null],"reasoning":null}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		in := object(body)
		for _, convert := range []func(members) (members, error){fromMessages, fromResponses} {
			if out, err := convert(in); err == nil {
				require.True(t, json.Valid(encode(out)))
			}
		}
	})
}

const (
	startEvent = `event: message_start` + "\n" + `data: {"type":"message_start","message":{"content":[],"usage":{"cache_read_input_tokens":5,"input_tokens":6,"output_tokens":0}}}` + "\n\n"
	deltaEvent = `event: message_delta` + "\n" + `data: {"type":"message_delta","usage":{"output_tokens":7}}` + "\n\n"
	stopEvent  = `event: message_stop` + "\n" + `data: {"type":"message_stop"}` + "\n\n"
)

// TestAccountsOfOtherAPIs: the figures of answers to /v1/messages and /v1/responses. What a model gives to
// a tool may look like figures.
func TestAccountsOfOtherAPIs(t *testing.T) {
	want := &llamatier.Answer{Cached: 5, Processed: 6, Generated: 7}
	timed := &llamatier.Answer{Cached: 5, Processed: 6, Generated: 7, Took: 1500 * time.Microsecond}
	long := strings.Repeat(`event: content_block_delta`+"\n"+`data: {"delta":{"text":"\"usage\":{\"input_tokens\":1}"}}`+"\n\n", 1000)
	for _, c := range []struct {
		loose bool
		text  string
		want  *llamatier.Answer
	}{
		{true, startEvent + long + deltaEvent + stopEvent, want},
		{true, startEvent + long + deltaEvent, nil},
		{true, long + deltaEvent + stopEvent, nil},
		{true, `{"content":[{"type":"tool_use","input":{"timings":{"cache_n":1,"prompt_n":1,"predicted_n":1},"usage":{"input_tokens":1,"output_tokens":1}}}],"usage":{"cache_read_input_tokens":5,"input_tokens":6,"output_tokens":7}}`, want},
		{true, `{"error":{"code":400}}`, nil},
		{false, `{"output":[],"usage":{"input_tokens":11,"output_tokens":7,"input_tokens_details":{"cached_tokens":5}}}`, want},
		{false, "event: response.output_text.delta\ndata: {}\n\nevent: response.completed\n" + `data: {"type":"response.completed","response":{"usage":{"input_tokens":1,"output_tokens":1}},"timings":{"cache_n":5,"prompt_n":6,"predicted_n":7,"prompt_ms":1.5}}` + "\n\n", timed},
		{false, "event: response.output_text.delta\ndata: {}\n\nevent: response.completed\n" + `data: {"type":"response.completed","response":{"output":"` + strings.Repeat("many words ", 5000) + `"},"timings":{"cache_n":5,"prompt_n":6,"predicted_n":7,"prompt_ms":1.5}}` + "\n\n", timed},
		{false, "event: response.created\n" + `data: {"type":"response.created","response":{"usage":{"input_tokens":1,"output_tokens":1}}}` + "\n\n", nil},
	} {
		for _, size := range []int{1, 100, 1 << 20} {
			a := api{convert: fromResponses}
			if c.loose {
				a = api{convert: fromMessages, loose: true}
			}
			e := end{api: a}
			readAll(t, &pieces{hearing(&e, c.text), size})
			got := e.answer()
			if got != nil && c.loose {
				got.Took = 0
			}
			require.Equal(t, c.want, got, c.text)
		}
	}
}

// TestStagedFiguresOfMessages: tokens computed before the request count as computed.
func TestStagedFiguresOfMessages(t *testing.T) {
	for _, size := range []int{1, 50, 1 << 10} {
		r := &restamped{ReadCloser: io.NopCloser(&pieces{strings.NewReader(startEvent), size}), staged: &llamatier.Answer{Processed: 3}}
		require.Contains(t, readAll(t, r), `"usage":{"cache_read_input_tokens":2,"input_tokens":9,"output_tokens":0}`)
	}
	responses := `"usage":{"input_tokens":11,"output_tokens":7,"input_tokens_details":{"cached_tokens":5}}`
	r := &restamped{ReadCloser: io.NopCloser(strings.NewReader(responses)), staged: &llamatier.Answer{Processed: 3}}
	require.Equal(t, strings.Replace(responses, `s":5`, `s":2`, 1), readAll(t, r))

	// The engine has chosen another slot than that of the steps.
	r = &restamped{ReadCloser: io.NopCloser(strings.NewReader(startEvent)), staged: &llamatier.Answer{Processed: 100}}
	require.Contains(t, readAll(t, r), `"usage":{"cache_read_input_tokens":0,"input_tokens":11,"output_tokens":0}`)
}

// TestMessagesWhoseSlotTheEngineChooses reach it as they are. The answer counts for the slot that it has chosen,
// and the next message is sent to it at once.
func TestMessagesWhoseSlotTheEngineChooses(t *testing.T) {
	c := newChats(t, 3)
	tokens := func(body string) int {
		in, err := fromMessages(object(json.RawMessage(body)))
		require.NoError(t, err)
		return len(encode(in))
	}
	choose := func(slot int) {
		c.on(func(path, body string, w http.ResponseWriter) bool {
			if path == "/v1/messages" {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.tasks[slot]++
				c.held[slot] = tokens(body)
				c.log = append(c.log, body)
				_, _ = fmt.Fprintf(w, `{"usage":{"cache_read_input_tokens":0,"input_tokens":%d,"output_tokens":1}}`, tokens(body))
				return true
			}
			return false
		})
	}
	for _, slot := range []int{2, 0} { // as expected, and another one
		choose(slot)
		say := strings.Repeat(strconv.Itoa(slot), 100)
		for turn, more := range []string{"", `,{"role":"user","content":"and?"}`, `,{"role":"user","content":"and?"},{"role":"user","content":"so?"}`} {
			c.seen()
			body := `{"id_slot":7,"messages":[{"role":"user","content":"` + say + `"}` + more + `]}`
			status, _ := post(t, c.url+"/v1/messages", body)
			require.Equal(t, http.StatusOK, status)
			c.free()
			seen := c.seen()
			require.Contains(t, seen, body)
			require.Equal(t, tokens(body)+1, c.tier.Slots()[slot].Tokens)
			hot := slices.Index(seen, body) < slices.Index(seen, "/apply-template")
			require.Equal(t, turn > 1 || turn == 1 && slot == 2, hot, seen)
		}
	}
	choose(1)
	status, _ := post(t, c.url+"/v1/messages", `{"messages":[{"role":"user","content":"`+strings.Repeat("0", 100)+`"},{"role":"user","content":"to slot 1"}]}`)
	require.Equal(t, http.StatusOK, status)
}

// TestPromptsReadInAnotherWay: a path whose prompts are not those that llama-server makes passes through
// after some of them.
func TestPromptsReadInAnotherWay(t *testing.T) {
	var mu sync.Mutex
	asked, tokens := map[string]int{}, 1
	e := listen(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked[r.URL.Path]++
		switch r.URL.Path {
		case "/apply-template":
			_, _ = io.WriteString(w, `{"prompt":"chat"}`)
		case "/tokenize":
			_, _ = io.WriteString(w, `{"tokens":[1,2]}`)
		case "/v1/messages", "/v1/responses":
			_ = json.NewEncoder(w).Encode(map[string]any{"usage": map[string]any{"cache_read_input_tokens": 1, "input_tokens": tokens, "output_tokens": 1}})
		}
	})
	log := slog.New(slog.DiscardHandler)
	templates := func(url, path string) int {
		mu.Lock()
		before := asked["/apply-template"]
		mu.Unlock()
		post(t, url+path, `{"messages":[],"input":"a"}`)
		mu.Lock()
		defer mu.Unlock()
		return asked["/apply-template"] - before
	}
	h := loaded(e, Ours{}, log)
	h.Use(aTier(t, e, 1, log))
	one := web(t, h)
	require.Equal(t, 1, templates(one, "/v1/messages"))
	require.Equal(t, 1, templates(one, "/v1/messages"))
	mu.Lock()
	tokens = 7
	mu.Unlock()
	for range misreadingsMax {
		require.Equal(t, 1, templates(one, "/v1/messages"))
	}
	require.Equal(t, 0, templates(one, "/v1/messages"))
	require.Equal(t, 1, templates(one, "/v1/responses"), "it is another path")
	h.texts.mu.Lock()
	defer h.texts.mu.Unlock()
	require.Zero(t, h.texts.mistakes, "the chat was another one, and its text rightly known")
}
