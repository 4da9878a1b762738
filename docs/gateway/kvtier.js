// beginning is what all requests of a conversation have in common, and few others: the model, and the chat up to the
// first message of a user. nginx hashes it.
function beginning(r) {
    try {
        const body = JSON.parse(r.requestText);
        const chat = body.messages || body.input || body.prompt;
        const first = Array.isArray(chat) ? chat.findIndex((m) => m.role === 'user') : -1;
        return JSON.stringify([body.model, chat.slice(0, first < 0 ? 1000 : first + 1)]);
    } catch (e) {
        return r.remoteAddress; // no conversation
    }
}

export default { beginning };
