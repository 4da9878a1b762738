package llamae2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// picture is the address of a small image; another one for each seed.
func picture(t testing.TB, seed int) string {
	img := image.NewRGBA(image.Rect(0, 0, 40, 60))
	for i := range 40 * 60 {
		img.Set(i%40, i/40, color.RGBA{uint8(7 * i), uint8(3 * i), uint8(seed * i), 255})
	}
	var b bytes.Buffer
	require.NoError(t, png.Encode(&b, img))
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}

// message is a user's message, of parts that are texts or, if they begin so, images.
func message(parts ...string) map[string]any {
	var content []map[string]any
	for _, p := range parts {
		if strings.HasPrefix(p, "data:") {
			content = append(content, map[string]any{"type": "image_url", "image_url": map[string]string{"url": p}})
		} else {
			content = append(content, map[string]any{"type": "text", "text": p})
		}
	}
	return map[string]any{"role": "user", "content": content}
}

// chat sends messages and returns the answer and the number of tokens that were not computed.
func (s *server) chat(messages ...map[string]any) (text string, cached int) {
	s.t.Helper()
	text, cached, _ = s.talk(messages...)
	return text, cached
}

// talk does as chat, and returns the number of tokens that were computed, too.
func (s *server) talk(messages ...map[string]any) (text string, cached, computed int) {
	s.t.Helper()
	var out struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
		Timings struct {
			Cached   int `json:"cache_n"`
			Computed int `json:"prompt_n"`
		} `json:"timings"`
	}
	s.read("/v1/chat/completions", map[string]any{"messages": messages, "max_tokens": 12, "temperature": 0, "seed": 1}, &out)
	return out.Choices[0].Message.Content, out.Timings.Cached, out.Timings.Computed
}

// image is a prompt with an image, as Ollama sends it.
func (s *server) image(before, picture, behind string) map[string]any {
	s.t.Helper()
	_, body := s.get("/props")
	var props struct {
		Mark string `json:"media_marker"`
	}
	require.NoError(s.t, json.Unmarshal([]byte(body), &props))
	_, data, _ := strings.Cut(picture, ",")
	return map[string]any{"prompt_string": before + props.Mark + behind, "multimodal_data": []string{data}}
}

// seeing returns the options of a server with a vision tower.
func seeing(t testing.TB, shape testmodel.Shape, slots string) llamatest.Options {
	o := llamatest.Options{Model: aModel(t, shape)}
	tower := filepath.Join(t.TempDir(), "mmproj.gguf")
	require.NoError(t, testmodel.WriteProjector(tower, shape))
	o.Args = []string{"--mmproj", tower, "-c", "8192", "-np", slots}
	return o
}

// TestImages: a server with a vision tower. Chats with images have the answers of a stock server, and come
// back after a kill, images and all. With another image only the text before it does.
func TestImages(t *testing.T) {
	for _, shape := range []testmodel.Shape{{Arch: "llama"}, {Arch: "gemma3", Window: 128}, {Arch: "lfm2"}, {Arch: "qwen3vl"}, {Arch: "qwen35"}} {
		anywhere := shape.Arch == "llama" || shape.Arch == "qwen3vl"
		t.Run(shape.Arch, func(t *testing.T) { testImages(t, seeing(t, shape, "1"), anywhere) })
	}
}

// testImages plays chats with images on a server, whose model goes on anywhere, or only where a slot was saved.
func testImages(t *testing.T, o llamatest.Options, anywhere bool) {
	story := strings.Repeat("The old castle stood by the sea. ", 60)
	text := message("Tell me more of this. " + story)
	seen := message("What is this? "+story, picture(t, 1), "Look at it well. "+story, picture(t, 2), picture(t, 2), "Or:", picture(t, 3))
	other := message("What is this? "+story, picture(t, 1), "Look at it well. "+story, picture(t, 2), picture(t, 2), "Or:", picture(t, 4))
	again := message("And now? "+story, picture(t, 1), picture(t, 5))

	type step struct {
		messages []map[string]any
		picture  int
		text     string
		computed [2]int // in two runs of ours
	}
	steps := []*step{
		{messages: []map[string]any{text}},
		{messages: []map[string]any{seen}},
		{messages: []map[string]any{other}},
		{picture: 2},
	}
	play := func(s *server, at *step) (cached, computed int) {
		if at.picture > 0 {
			a := s.complete(s.image("Another one. "+story, picture(t, at.picture), " What is this?"), 12)
			require.True(t, at.text == "" || at.text == a.Content, "%q, want %q", a.Content, at.text)
			at.text = a.Content
			return a.Timings.Cached, a.Timings.Computed
		}
		got, cached, computed := s.talk(at.messages...)
		require.True(t, at.text == "" || at.text == got, "%q, want %q", got, at.text)
		at.text = got
		return cached, computed
	}
	stock := start(t, o)
	for _, at := range steps {
		play(stock, at)
	}
	more := &step{messages: []map[string]any{seen, {"role": "assistant", "content": steps[1].text}, again}}
	play(stock, more)
	stock.Kill()

	o.Root = filepath.Join(t.TempDir(), "pages")
	for run := range 2 {
		for _, at := range steps {
			s := start(t, o)
			_, at.computed[run] = play(s, at)
			s.Kill()
		}
	}
	for i, at := range steps {
		require.Greater(t, at.computed[0], 1, "%d", i)
		if anywhere {
			require.Equal(t, 1, at.computed[1], "%d: all but the last token comes back", i)
		}
	}
	if anywhere {
		require.Less(t, steps[2].computed[0], 64, "the first images come back before another one")
	}
	s := start(t, o)
	cached, computed := play(s, more)
	require.Greater(t, cached, 900, "a chat with images goes on")
	require.Less(t, computed, 700)
	s.Kill()
	requireClean(t, o.Root)
}

// TestImagesOfSeveralUsers: a conversation with an image finds the slot that holds it, as it does
// without us, and takes no other conversation's.
func TestImagesOfSeveralUsers(t *testing.T) {
	o := seeing(t, testmodel.Shape{Arch: "llama"}, "3")
	reuse := func(s *server) (all []int) {
		text, first, second := message("Tell me a story."), message("Look:", picture(t, 1)), message("Look:", picture(t, 2))
		said := make(map[int]string)
		for i, m := range []map[string]any{text, first, second} {
			said[i], _ = s.chat(m)
		}
		for i, m := range []map[string]any{text, first, second, first} {
			_, cached := s.chat(m, map[string]any{"role": "assistant", "content": said[i%3]}, message("And then?"))
			all = append(all, cached)
		}
		return all
	}
	stock := start(t, o)
	want := reuse(stock)
	stock.Kill()
	o.Root = filepath.Join(t.TempDir(), "pages")
	s := start(t, o)
	for i, cached := range reuse(s) {
		require.GreaterOrEqual(t, cached, want[i], "conversation %d", i)
	}
	s.Kill()
	requireClean(t, o.Root)
}

// TestBatchesOfAnImage: in a model of Gemma 3's kind, tokens of an image also attend to those behind them in the
// same batch. Rows of an image that another size of batches has cut are not those of a stock server.
func TestBatchesOfAnImage(t *testing.T) {
	o := seeing(t, testmodel.Shape{Arch: "gemma3", Window: 128}, "1")
	story := strings.Repeat("The old castle stood by the sea. ", 20)
	ask := func(root, more string, n int, batches ...string) answer {
		o := o
		o.Root, o.Args = root, slices.Concat(o.Args, batches)
		s := start(t, o)
		defer s.Kill()
		return s.complete(s.image(story, picture(t, 1), " What is this?"+more), n)
	}
	root := filepath.Join(t.TempDir(), "pages")
	want := ask("", " Tell me more.", 12)
	ask(root, "", 1, "-b", "8", "-ub", "8")
	requireSame(t, want, ask(root, " Tell me more.", 12), 0.02)
	ask(root, "", 1)
	got := ask(root, " Tell me more.", 12)
	requireSame(t, want, got, 0.02)
	require.Greater(t, got.Timings.Cached, 200)
	requireClean(t, root)
}
