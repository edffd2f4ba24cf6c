"""The diagrams: what happens in a dialog, at a poison message, and in one delivery."""

from __future__ import annotations

from tools.sequences.drawing import Arrow, Diagram, Note

SHOP, SHOP_QUEUE, STORE_QUEUE, STORE = "shop", "queue of the shop", "queue of the warehouse", "warehouse"

DIALOG = Diagram(
    "A dialog from its beginning to its end",
    "The shop begins a dialog and sends an order in one commit to its own queue. The order is carried to the queue of the warehouse. A "
    "pass there hands it to the handler, which replies and ends its side; the pass commits all of it at once. Reply and EndDialog are "
    "carried to the queue of the shop, whose handler receives both and ends its side, too. The broker of the warehouse is told, and "
    "both endpoints are closed.",
    (SHOP, SHOP_QUEUE, STORE_QUEUE, STORE),
    (
        Arrow(SHOP, SHOP_QUEUE, "BEGIN DIALOG, SEND order"),
        Note(SHOP_QUEUE, "one commit: endpoint CO,\norder in _transmission"),
        Arrow(SHOP_QUEUE, STORE_QUEUE, "order"),
        Note(STORE_QUEUE, "order in main"),
        Arrow(STORE_QUEUE, STORE, "a pass: RECEIVE"),
        Arrow(STORE, STORE_QUEUE, "SEND shipped, END"),
        Note(STORE_QUEUE, "one commit: order gone,\nendpoint DO, shipped and\nEndDialog in _transmission"),
        Arrow(STORE_QUEUE, SHOP_QUEUE, "shipped, EndDialog"),
        Arrow(SHOP_QUEUE, SHOP, "a pass: RECEIVE shipped"),
        Arrow(SHOP_QUEUE, SHOP, "RECEIVE EndDialog"),
        Arrow(SHOP, SHOP_QUEUE, "END CONVERSATION"),
        Note(SHOP_QUEUE, "endpoint CD", "good"),
        Arrow(SHOP_QUEUE, STORE_QUEUE, "acknowledgement"),
        Note(STORE_QUEUE, "next pass: endpoint CD", "good"),
    ),
)

PEOPLE = "people"
RECOVERY = Diagram(
    "A poison message in a dialog, and what becomes of it",
    "An order arrives at the warehouse. Five deliveries in a row are rolled back and the queue is disabled; people are alerted. What "
    "the shop sends now stays at its side. People inspect the message and end its conversation with error 127: its messages go, and the "
    "Error leaves for the shop. The queue is enabled, and what waited arrives. The shop receives the Error, notes it, and ends its "
    "side.",
    (SHOP, SHOP_QUEUE, STORE_QUEUE, STORE, PEOPLE),
    (
        Arrow(SHOP_QUEUE, STORE_QUEUE, "order"),
        Arrow(STORE_QUEUE, STORE, "RECEIVE order"),
        Arrow(STORE, STORE_QUEUE, "raises: ROLLBACK"),
        Note(STORE_QUEUE, "five times in a row", "bad", STORE),
        Note(STORE_QUEUE, "STATUS = OFF", "bad"),
        Arrow(STORE_QUEUE, PEOPLE, "Broker:Queue Disabled"),
        Note(SHOP_QUEUE, "further messages\nwait in _transmission"),
        Arrow(PEOPLE, STORE_QUEUE, "inspect: nothing changes"),
        Arrow(PEOPLE, STORE_QUEUE, "END CONVERSATION WITH ERROR = 127"),
        Note(STORE_QUEUE, "one commit: endpoint CD,\nits messages gone,\nError in _transmission"),
        Arrow(STORE_QUEUE, SHOP_QUEUE, "Error 127"),
        Arrow(PEOPLE, STORE_QUEUE, "STATUS = ON"),
        Arrow(SHOP_QUEUE, STORE_QUEUE, "what waited"),
        Note(STORE_QUEUE, "receives on", "good"),
        Arrow(SHOP_QUEUE, SHOP, "RECEIVE Error"),
        Arrow(SHOP, SHOP_QUEUE, "END CONVERSATION"),
        Note(SHOP_QUEUE, "endpoint CD", "good"),
    ),
)

DRIVER, TASK, JOURNAL, HANDLER, TABLE = "driver of the pass", "task", "journal", "your handler", "queue table"
DELIVERY = Diagram(
    "One delivery of a dialog's message, and where a process may die",
    "The driver claims messages and writes what is known of their conversations into the stage. The task hands a message over; the "
    "handler acts on a copy of the endpoint. When it returns, what it did is written to the journal's log, and then its word says that "
    "it is committed. The outcome and the changed endpoints and messages are staged; one final commit takes all of it. Then the "
    "messages leave. Five numbered points mark where a process may die.",
    (TABLE, DRIVER, TASK, JOURNAL, HANDLER),
    (
        Arrow(DRIVER, TABLE, "claim"),
        Arrow(DRIVER, TASK, "dialogs.json"),
        Arrow(TASK, HANDLER, "message, with a copy of the endpoint"),
        Note(HANDLER, "1: its process dies", "bad"),
        Arrow(HANDLER, TASK, "returns: what it did"),
        Note(TASK, "2: before its effects\nare written", "bad"),
        Arrow(TASK, JOURNAL, "effects"),
        Note(JOURNAL, "3: before its word", "bad"),
        Arrow(TASK, JOURNAL, "word: COMMITTED"),
        Note(JOURNAL, "4: before the final commit", "bad"),
        Arrow(TASK, DRIVER, "staged: endpoints, messages"),
        Arrow(DRIVER, TABLE, "one final commit"),
        Note(TABLE, "5: before they leave", "bad"),
        Arrow(DRIVER, TABLE, "transmit to partners"),
    ),
)

DIAGRAMS = {"dialog.svg": DIALOG, "dialog-poison.svg": RECOVERY, "dialog-delivery.svg": DELIVERY}
