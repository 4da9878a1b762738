package soak

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/testmodel"
)

// Message is a message of a conversation, or a document.
type Message struct {
	Role  string // "system", "user" or "assistant"
	Text  string
	Image uint64 // seed of the message's image; 0: no image
}

// SystemWords is the length, in words, of the system message of all conversations, which
// share its pages.
const SystemWords = 70

// Chats holds conversations with their answers so far.
type Chats struct {
	words  func(tokens int, seed int64) string
	system Message
	chats  map[int][]Message
}

// NewChats returns Chats without a conversation. words makes a text of the given number of
// tokens; system is the seed of the common system message.
func NewChats(system int64, words func(tokens int, seed int64) string) *Chats {
	return &Chats{
		words: words, chats: make(map[int][]Message),
		system: Message{Role: "system", Text: words(SystemWords, system)},
	}
}

// Ask returns the messages to send for a request: the messages of a conversation, or a
// document alone. Different conversations may have open requests at the same time.
func (c *Chats) Ask(r Request) []Message {
	say := Message{Role: "user", Text: c.words(r.Words, r.Seed), Image: r.Image}
	messages := c.chats[r.Chat]
	switch r.Kind {
	case Document:
		return []Message{say}
	case GiveUp:
		return append(slices.Clone(messages), say)
	case Start:
		messages = []Message{c.system, say}
	case Turn:
		messages = append(slices.Clone(messages), say)
	case Regenerate:
		messages = messages[:len(messages)-1]
	case Branch:
		messages = append(slices.Clone(messages[:c.user(r.Chat, r.Message)]), say)
	}
	c.chats[r.Chat] = messages
	return slices.Clone(messages)
}

// user is the index of the user's message number n in a conversation.
func (c *Chats) user(chat, n int) int {
	for i, message := range c.chats[chat] {
		if message.Role != "user" {
			continue
		}
		if n == 0 {
			return i
		}
		n--
	}
	panic(fmt.Sprintf("soak: chat %d has no such message of the user", chat))
}

// Answered adds the answer to a request.
func (c *Chats) Answered(r Request, text string) {
	if r.Kind == Document || r.Kind == GiveUp {
		return
	}
	c.chats[r.Chat] = append(slices.Clone(c.chats[r.Chat]), Message{Role: "assistant", Text: text})
}

// Render returns the prompt that the template of testmodel.Modelfile makes of messages, up
// to the answer. Images are numbered in order, as in a raw prompt.
func Render(messages []Message) string {
	var b strings.Builder
	images := 0
	for _, m := range messages {
		fmt.Fprintf(&b, "%s%s\n", testmodel.ImStart, m.Role)
		if m.Image != 0 {
			fmt.Fprintf(&b, "[img-%d]", images)
			images++
		}
		fmt.Fprintf(&b, "%s%s\n", m.Text, testmodel.ImEnd)
	}
	fmt.Fprintf(&b, "%sassistant\n", testmodel.ImStart)
	return b.String()
}
